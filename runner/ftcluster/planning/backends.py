"""Choose the backend of torch.distributed, and whether IPEX is used. Pure functions only.

oneCCL runs collectives in its own threads, called workers, which poll continuously. The workers
need cores that do not compute (oneCCL Developer Guide, Execution of Communication Operations). Each
rank has one worker, on its last core. Both are oneCCL's defaults.
"""

from collections.abc import Mapping, Sequence

from ftcluster.cluster.facts import AllReduce, ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.tuned import UNTUNED, Tuned
from ftcluster.stacks.catalog import Stack, install_hint
from ftcluster_common.protocol.launch import CCL, GLOO, IMPI
from ftcluster_common.recipe import Recipe

BITSANDBYTES = "bitsandbytes"
IPEX_FLAG = "avx512f"  # required by IPEX's training kernels
WORKERS = 1  # number of oneCCL workers of each rank
NO_WORKER = "; not ccl, because a rank with one core has no core for oneCCL's worker"
WHY = {
    IMPI: "the default without a measurement; to measure the backends: ftcluster bench allreduce",
    GLOO: "every CPU build of torch contains this backend",
}


def stack_of(facts: ClusterFacts, stacks: Mapping[str, Stack]) -> Stack:
    """Return the stack that all hosts have.

    Raises:
        PlanError: the hosts have different stacks, or this version of ftcluster does not know their
            stack.
    """
    name = facts.head.stack
    others = [f"{host.name} has {host.stack}" for host in facts.hosts if host.stack != name]
    if others:
        raise PlanError(
            f"all hosts need the same stack; {facts.head.name} has {name}, {', '.join(others)}",
            "set them up together: ftcluster setup",
        )
    if name not in stacks:
        raise PlanError(
            f"the hosts have the stack {name}, which this version of ftcluster does not know",
            "set the hosts up again: ftcluster setup; to list the stacks: ftcluster stacks",
        )
    return stacks[name]


def choose_ipex(
    recipe: Recipe | None, hosts: Sequence[HostFacts], stack: Stack, stacks: Mapping[str, Stack]
) -> tuple[bool, str]:
    """Decide whether IPEX optimizes the model. Return the decision and its reason.

    Args:
        recipe: recipe of the training; None for a user's script.

    Raises:
        PlanError: the recipe requires IPEX, but the stack does not contain IPEX, or the recipe also
            resumes a run, takes local steps or tunes a model for instructions.
    """
    if recipe is None:
        return False, "the script decides"
    asked = recipe.training.use_ipex
    checkpoint = recipe.training.resume_from_checkpoint
    local = "local steps do not work with IPEX" if recipe.training.sync == "local" else ""
    resumes = f"with IPEX, training cannot continue from {checkpoint}" if checkpoint else ""
    kernels = "adapters do not work with IPEX" if recipe.adapters else ""
    against = resumes or local or recipe.spec.against_ipex or kernels
    if asked is True:
        if not stack.has_ipex:
            having = [other for other in stacks.values() if other.has_ipex]
            raise PlanError(
                f"training.use_ipex=true, but stack {stack.name} does not contain IPEX",
                install_hint(having),
            )
        if against:
            raise PlanError(
                f"training.use_ipex=true is not possible: {against}", "set training.use_ipex=false"
            )
        return True, f"set in recipe {recipe.name}"
    if asked is False:
        return False, f"set in recipe {recipe.name}"
    if not stack.has_ipex:
        return False, f"stack {stack.name} does not contain IPEX; torch itself uses AMX"
    if against:
        return False, against
    without = [host.name for host in hosts if IPEX_FLAG not in host.cpu_flags]
    if without:
        return False, f"IPEX's kernels need AVX512, which is missing on {', '.join(without)}"
    return True, f"stack {stack.name} contains IPEX, and every host has AVX512"


def check_quantization(recipe: Recipe, stack: Stack, stacks: Mapping[str, Stack]) -> None:
    """Check that the stack has bitsandbytes, if the recipe needs it.

    Raises:
        PlanError: the recipe needs bitsandbytes, but the stack does not contain it.
    """
    if recipe.load_in_4bit and not stack.version(BITSANDBYTES):
        raise PlanError(
            f"load_in_4bit=true, but stack {stack.name} does not contain {BITSANDBYTES}",
            install_hint([other for other in stacks.values() if other.version(BITSANDBYTES)]),
        )


def choose_backend(
    recipe: Recipe | None,
    world: int,
    cores: int,
    stack: Stack,
    stacks: Mapping[str, Stack],
    measured: AllReduce | None,
    sent: int,
    tuned: Tuned = UNTUNED,
) -> tuple[str, str]:
    """Return the torch.distributed backend, and the reason for this choice.

    Args:
        recipe: recipe of the training; None for a user's script.
        world: number of ranks on all hosts.
        cores: number of cores of the rank with the fewest cores.
        measured: measured all-reduce times of these hosts; None if there is no measurement.
        sent: size in bytes of the largest all-reduce of a step.

    Raises:
        PlanError: the recipe requires a backend that the stack does not have.
    """
    asked = recipe.training.ddp_backend if recipe else "auto"
    if recipe and asked != "auto":
        if asked not in stack.backends:
            having = [other for other in stacks.values() if asked in other.backends]
            raise PlanError(
                f"training.ddp_backend={asked}, but stack {stack.name} has only "
                f"{', '.join(stack.backends)}",
                install_hint(having),
            )
        return asked, tuned.reason(recipe, "training.ddp_backend")
    if world == 1:
        return GLOO, "there is only one rank"
    usable = [name for name in stack.backends if name != CCL or cores > WORKERS]
    left_out = "" if len(usable) == len(stack.backends) else NO_WORKER
    measured = measured and measured.nearest(sent)
    times = {name: measured.ms[name] for name in usable if name in measured.ms} if measured else {}
    if measured and len(times) > 1 and usable[0] in times:
        fastest = min(times, key=lambda name: times[name])
        others = ", ".join(f"{name} {times[name]:.3g} ms" for name in times if name != fastest)
        mib = measured.bytes / 2**20
        size = f"{mib:g} MiB" if mib >= 1 else f"{mib * 1024:g} KiB"
        why = f"{measured.by} found it fastest: {times[fastest]:.3g} ms for {size}, {others}"
        return fastest, f"{why}{left_out}"
    if usable[0] == CCL:
        return CCL, f"stack {stack.name} contains oneccl_bind_pt"
    return usable[0], f"{WHY[usable[0]]}{left_out}"
