"""What a run uses of what its stack has besides torch: IPEX and oneCCL. Pure functions only."""

from collections.abc import Mapping, Sequence

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.oneccl import WORKERS
from ftcluster.stacks.catalog import Stack
from ftcluster_common.launch import CCL
from ftcluster_common.recipe import Recipe

IPEX_FLAG = "avx512f"  # what IPEX's kernels for training are made for


def stack_of(facts: ClusterFacts, stacks: Mapping[str, Stack]) -> Stack:
    """The stack that all hosts have.

    Raises:
        PlanError: they have different ones, or one that is not known here.
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
            f"the hosts have the stack {name}, which this ftcluster does not know",
            "set them up again: ftcluster setup; what there is: ftcluster stacks",
        )
    return stacks[name]


def choose_ipex(
    recipe: Recipe | None, hosts: Sequence[HostFacts], stack: Stack, stacks: Mapping[str, Stack]
) -> tuple[bool, str]:
    """Whether IPEX optimizes the model, and why.

    Args:
        recipe: what is trained; None for a program of the user's own.
        hosts: those that take part.
        stack: what they have.
        stacks: all stacks, for advice.

    Raises:
        PlanError: the recipe asks for it and the stack has none.
    """
    if recipe is None:
        return False, "the program's own affair"
    asked = recipe.training.use_ipex
    if asked is True:
        if not stack.has_ipex:
            having = [other.name for other in stacks.values() if other.has_ipex]
            raise PlanError(
                f"training.use_ipex=true, but the stack {stack.name} has no IPEX",
                _instead(having, stacks),
            )
        return True, f"as recipe {recipe.name} says"
    if asked is False:
        return False, f"as recipe {recipe.name} says"
    if not stack.has_ipex:
        return False, f"the stack {stack.name} has none; today's torch uses AMX by itself"
    without = [host.name for host in hosts if IPEX_FLAG not in host.cpu_flags]
    if without:
        return False, f"no AVX512 on {', '.join(without)}, which its kernels are made for"
    return True, f"the stack {stack.name} has it, and every host has AVX512"


def choose_backend(
    recipe: Recipe | None, world: int, cores: int, stack: Stack, stacks: Mapping[str, Stack]
) -> tuple[str, str]:
    """The torch.distributed backend, and why.

    Args:
        recipe: what is trained; None for a program of the user's own.
        world: the number of ranks.
        cores: those that every rank has at least.
        stack: what the hosts have.
        stacks: all stacks, for advice.

    Raises:
        PlanError: the recipe asks for one that the stack has not.
    """
    asked = recipe.training.ddp_backend if recipe else "auto"
    if recipe and asked != "auto":
        if asked not in stack.backends:
            having = [other.name for other in stacks.values() if asked in other.backends]
            raise PlanError(
                f"training.ddp_backend={asked}, but the stack {stack.name} has only "
                f"{', '.join(stack.backends)}",
                _instead(having, stacks),
            )
        return asked, f"as recipe {recipe.name} says"
    if stack.backends[0] != CCL:
        return "gloo", "the collective backend that every torch for CPUs has"
    if world == 1:
        return "gloo", "not ccl: one rank alone has nothing to communicate"
    if cores <= WORKERS:
        return "gloo", "not ccl: a rank with one core has none to give to oneCCL's worker"
    return CCL, f"the stack {stack.name} has oneccl_bind_pt, which it prefers"


def _instead(having: Sequence[str], stacks: Mapping[str, Stack]) -> str:
    """What to do to have what some stacks have, first those that are looked after."""
    kept = [name for name in having if stacks[name].state != "documented"] or list(having)
    if not kept:
        return "no stack has it; what there is: ftcluster stacks"
    verb = "have" if len(kept) > 1 else "has"
    return (
        f"{' and '.join(kept)} {verb} it: ftcluster setup --stack {kept[0]}; see ftcluster stacks"
    )
