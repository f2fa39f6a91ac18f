"""Finds imports and arguments of a script that a stack's versions do not support.

Without this check, the script would fail on every rank, after a minute of imports.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ftcluster.stacks.catalog import CCL, IPEX, Stack, install_hint, numbers
from ftcluster.user_script.source import Argument, Import, Source

BF16_NEEDS_USE_CPU = (4, 55)  # version of transformers
NO_IPEX = 'torch uses AMX by itself; for bfloat16: torch.autocast("cpu", dtype=torch.bfloat16)'
NO_CCL = 'use the backend "impi" or "gloo", or os.environ["FTCLUSTER_BACKEND"]'
PLANNED = "remove it: the planned backend is used"
NO_SPAWN = (
    "ftcluster starts a process for each rank, with RANK and WORLD_SIZE: call the function directly"
)
CPU = 'use "cpu", remove cuda.set_device and device_ids, and use the backend gloo or none'
# packages of modules that scripts often import and stacks may lack
PACKAGES: Mapping[str, str] = {
    "deepspeed": "deepspeed", "einops": "einops", "evaluate": "evaluate", "hydra": "hydra-core",
    "lightning": "lightning", "nltk": "nltk", "omegaconf": "omegaconf", "peft": "peft",
    "pytorch_lightning": "pytorch-lightning", "rouge_score": "rouge-score",
    "sacrebleu": "sacrebleu", "sentence_transformers": "sentence-transformers", "timm": "timm",
    "torchaudio": "torchaudio", "torchvision": "torchvision", "trl": "trl", "wandb": "wandb",
}  # fmt: skip
# Arguments that transformers removed from TrainingArguments, each with the first release without
# the argument and a replacement. tests/engine compares this table with the stack's transformers.
REMOVED: Mapping[str, tuple[tuple[int, ...], str]] = {
    "xpu_backend": ((4, 35), "write ddp_backend"),
    "evaluation_strategy": ((4, 51), "write eval_strategy"),
    "use_ipex": ((4, 57), f"remove it: {NO_IPEX}"),
    "no_cuda": ((5, 0), "write use_cpu"),
    "jit_mode_eval": ((5, 0), "write torch_compile"),
    "overwrite_output_dir": ((5, 0), "remove it: Trainer overwrites anyway"),
    "per_gpu_train_batch_size": ((5, 0), "write per_device_train_batch_size"),
    "per_gpu_eval_batch_size": ((5, 0), "write per_device_eval_batch_size"),
    "adafactor": ((5, 0), "write optim=adafactor"),
    "group_by_length": ((5, 0), "write train_sampling_strategy=group_by_length"),
    "warmup_ratio": ((5, 0), "write warmup_steps, which also accepts a ratio"),
    "logging_dir": ((5, 0), "set the variable TENSORBOARD_LOGGING_DIR in the script"),
    "save_safetensors": ((5, 0), "remove it: it is always on"),
    "include_inputs_for_metrics": ((5, 0), "write include_for_metrics=inputs"),
    "push_to_hub_model_id": ((5, 0), "write hub_model_id"),
    "push_to_hub_token": ((5, 0), "write hub_token"),
}


@dataclass(frozen=True)
class Incompatibility:
    """A place where a script uses something that the stack does not support.

    Attributes:
        what: file and line, with the reason why the stack does not support this.
        hint: advice to the user, such as a replacement.
        certain: True if the script is certain to fail.
    """

    what: str
    hint: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.what}\n    {self.hint}"


def incompatibilities(
    source: Source | None,
    words: Sequence[str],
    stack: Stack,
    stacks: Mapping[str, Stack],
    brings: bool = False,
) -> list[Incompatibility]:
    """Return all places where a script uses something that the stack does not support.

    Args:
        source: the script's source; None if the script is only on the hosts. In this case no
            incompatibility is certain.
        words: arguments of the script.
        stack: stack of the cluster.
        stacks: all stacks by name.
        brings: True if --requirements installs further packages for the script.
    """
    flags = _flags(words)
    if source is None:
        return [replace(problem, certain=False) for problem in _of_arguments(flags, stack, stacks)]
    parsed = [flag for flag in flags if flag.name not in source.own_flags]
    arguments = [*(parsed if source.parses_flags else ()), *source.arguments]
    return [
        *([] if brings else _of_packages(source.imports, stack)),
        *_of_imports(source.imports, stack, stacks),
        *_of_arguments(arguments, stack, stacks),
        *_of_calls(source, stack),
    ]


def other_backends(
    source: Source | None, words: Sequence[str], stack: Stack, planned: str
) -> list[str]:
    """Return a note for each place where a script overrides the planned backend."""
    if source is None:
        return []
    arguments = [*(_flags(words) if source.parses_flags else ()), *source.arguments]
    asked = [
        *((backend.where, backend.text, backend.backend) for backend in source.backends),
        *(
            (argument.where, f"ddp_backend={argument.value}", argument.value)
            for argument in arguments
            if argument.name == "ddp_backend" and argument.value != "None"
        ),
    ]
    return [
        f"{where}{': ' * bool(where)}{text}: {backend} is used instead of the planned {planned}"
        for where, text, backend in asked
        if backend in stack.backends and backend != planned
    ]


def _has_only(stack: Stack) -> str:
    return f"stack {stack.name} supports only {', '.join(stack.backends)}"


def _of_calls(source: Source, stack: Stack) -> list[Incompatibility]:
    """Return incompatible calls. They are not certain, because a condition may prevent a call."""
    return [
        *(
            Incompatibility(
                f"{call.where}: {call.text}: {_has_only(stack)}", PLANNED, certain=False
            )
            for call in source.backends
            if call.backend not in stack.backends
        ),
        *(
            Incompatibility(f"{call.where}: {call.text} starts more ranks", NO_SPAWN, certain=False)
            for call in source.spawns
        ),
        *(
            Incompatibility(f"{where}: uses a GPU, but the hosts have none", CPU, certain=False)
            for where in source.gpus
        ),
    ]


def _flags(words: Sequence[str]) -> list[Argument]:
    flags = []
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            argument = value if equals or following.startswith("--") else following
            flags.append(Argument(name.replace("-", "_"), argument, "", frozenset()))
    names = frozenset(flag.name for flag in flags)
    return [replace(flag, others=names) for flag in flags]


def _of_arguments(
    arguments: Iterable[Argument], stack: Stack, stacks: Mapping[str, Stack]
) -> list[Incompatibility]:
    transformers = f"transformers {stack.version('transformers')} of stack {stack.name}"
    version = numbers(stack.version("transformers"))
    needs_cpu = ("bf16", "bf16_full_eval") if version >= BF16_NEEDS_USE_CPU else ()
    problems = []
    for flag in arguments:
        removed, instead = REMOVED.get(flag.name, (version, ""))
        off = flag.value.lower() in ("false", "0", "no")
        why = hint = ""
        names = ("ddp_backend", "xpu_backend")
        if flag.name in names and flag.value and flag.value not in stack.backends:
            why = _has_only(stack)
            hint = f"{PLANNED}; {_stack_with((CCL,), stacks)}" if flag.value == "ccl" else PLANNED
        elif instead and version >= removed:
            why, hint = f"{transformers} does not have this argument", instead
        elif flag.name == "use_ipex" and not off and not stack.has_ipex:
            why = f"stack {stack.name} does not have IPEX"
            hint = f"remove it: {NO_IPEX}; {_stack_with(IPEX, stacks)}"
        elif flag.name in needs_cpu and not off and not flag.others & {"use_cpu", "no_cuda", "**"}:
            why, hint = f"{transformers} also needs use_cpu", "add use_cpu"
        if why:
            where = f"{flag.where}: TrainingArguments({flag.name}=...)" if flag.where else ""
            problems.append(Incompatibility(f"{where or f'--{flag.name}'}: {why}", hint))
    return problems


def _of_packages(imports: Iterable[Import], stack: Stack) -> list[Incompatibility]:
    return [
        Incompatibility(
            f"{imported.where}: import {imported.module}: stack {stack.name} does not have it",
            f"ftcluster run --requirements FILE -- SCRIPT, and in the file: {package}",
            imported.certain,
        )
        for imported in imports
        if (package := PACKAGES.get(imported.module)) and package not in stack.packages
    ]


def _of_imports(
    imports: Iterable[Import], stack: Stack, stacks: Mapping[str, Stack]
) -> list[Incompatibility]:
    available = {
        **{name: name in stack.packages for name in IPEX},
        "oneccl_bindings_for_pytorch": stack.has_ccl,
        "torch_ccl": False,  # the module's name before 1.12
    }
    problems = []
    for imported in imports:
        if available.get(imported.module, True):
            continue
        if imported.module in IPEX:
            package, hint = "IPEX", f"{NO_IPEX}; {_stack_with((imported.module,), stacks)}"
        elif stack.has_ccl:
            package, hint = "a module of this name", "import oneccl_bindings_for_pytorch"
        else:
            package, hint = CCL, f"{NO_CCL}; {_stack_with((CCL,), stacks)}"
        where = f"{imported.where}: import {imported.module}"
        what = f"{where}: stack {stack.name} does not have {package}"
        problems.append(Incompatibility(what, hint, imported.certain))
    return problems


def _stack_with(packages: Sequence[str], stacks: Mapping[str, Stack]) -> str:
    return install_hint([stack for stack in stacks.values() if stack.version(*packages)])
