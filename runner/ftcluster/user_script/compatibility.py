"""What scripts of older times ask for that the versions of a stack no longer have.

A script that asks for it fails on every rank, after a minute of imports; here it is known before.
The table was read off transformers' own TrainingArguments in the versions of all stacks, from
4.19.4 to 5.23.0: `since` and `gone` are releases that were looked at, not the very first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ftcluster.stacks.catalog import CCL, IPEX, Stack, numbers
from ftcluster.user_script.source import Source

# what has TrainingArguments as its command line
PARSES_FLAGS = {"transformers", "trl"}
BINDING_RENAMED = (1, 12)  # torch_ccl became oneccl_bindings_for_pytorch
BF16_NEEDS_USE_CPU = (4, 55)  # before, bf16 without it was let through where there is no GPU
NO_IPEX = (
    "torch uses AMX and AVX512 by itself: take the import and ipex.optimize() out; for bfloat16 "
    'write torch.autocast("cpu", dtype=torch.bfloat16)'
)
NO_CCL = 'take the import out and write backend="gloo", or os.environ["FTCLUSTER_BACKEND"]'


@dataclass(frozen=True)
class Flag:
    """An option of TrainingArguments that not every version has.

    Attributes:
        instead: what to write, `{}` for the value.
        since: a release that has it, as numbers.
        gone: a release that has it no longer; () for none.
    """

    instead: str
    since: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()

    def taken_by(self, version: tuple[int, ...]) -> bool:
        """Whether this transformers has it."""
        return version >= self.since and (not self.gone or version < self.gone)


FLAGS: Mapping[str, Flag] = {
    "no_cuda": Flag("write --use_cpu", gone=(5, 0)),
    "use_cpu": Flag("write --no_cuda", since=(4, 35)),
    "use_ipex": Flag(f"leave it out; {NO_IPEX}", since=(4, 22), gone=(4, 57)),
    "jit_mode_eval": Flag("leave it out; --torch_compile is today's way", (4, 22), (5, 0)),
    "xpu_backend": Flag("write --ddp_backend {}", gone=(4, 35)),
    "ddp_backend": Flag("write --xpu_backend {}", since=(4, 31)),
    "overwrite_output_dir": Flag(
        "leave it out: Trainer now writes into a folder that is not empty anyway; to start anew "
        "take another --output_dir",
        gone=(5, 0),
    ),
    "evaluation_strategy": Flag("write --eval_strategy {}", gone=(4, 51)),
    "eval_strategy": Flag("write --evaluation_strategy {}", since=(4, 41)),
    "per_gpu_train_batch_size": Flag("write --per_device_train_batch_size {}", gone=(5, 0)),
    "per_gpu_eval_batch_size": Flag("write --per_device_eval_batch_size {}", gone=(5, 0)),
    "half_precision_backend": Flag("leave it out; there is one left", gone=(5, 0)),
    "fp16_backend": Flag("leave it out; there is one left", gone=(5, 0)),
    "use_mps_device": Flag("leave it out", since=(4, 22), gone=(5, 0)),
    "tpu_num_cores": Flag("leave it out", gone=(5, 0)),
    "adafactor": Flag("write --optim adafactor", gone=(5, 0)),
    "group_by_length": Flag("write --train_sampling_strategy group_by_length", gone=(5, 0)),
    "warmup_ratio": Flag("write --warmup_steps {}, which takes a share as well", gone=(5, 0)),
    "logging_dir": Flag("set the variable TENSORBOARD_LOGGING_DIR in the script", gone=(5, 0)),
    "save_safetensors": Flag("leave it out; it always does", since=(4, 28), gone=(5, 0)),
    "include_inputs_for_metrics": Flag("write --include_for_metrics inputs", gone=(5, 0)),
    "push_to_hub_model_id": Flag("write --hub_model_id {}", gone=(5, 0)),
    "push_to_hub_token": Flag("write --hub_token {}", gone=(5, 0)),
}


@dataclass(frozen=True)
class Finding:
    """Something that a script asks for and the stack has not.

    Attributes:
        what: where it stands, what is asked for and why it cannot be.
        instead: what to write.
        certain: whether the script fails of it.
    """

    what: str
    instead: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.what}\n    {self.instead}"


@dataclass(frozen=True)
class _Option:
    """One option as it was written.

    Attributes:
        name: with underscores.
        value: what was given for it, or "".
        text: as it was written.
        in_source: whether it is an argument of a call.
    """

    name: str
    value: str
    text: str
    in_source: bool = False
    beside: frozenset[str] = field(default_factory=frozenset)


def find_old(
    source: Source | None,
    arguments: Sequence[str],
    stack: Stack,
    stacks: Mapping[str, Stack],
) -> list[Finding]:
    """Everything that the script asks for and the stack has not.

    Args:
        source: what the script says; None where it is on the hosts only. Then nothing is certain.
        arguments: its command line.
        stack: what the hosts have.
        stacks: all stacks, for advice.
    """
    given = _options(arguments)
    if source is None:
        return [
            Finding(found.what, found.instead, certain=False)
            for found in _flags(given, stack, stacks)
        ]
    found = _imports(source, stack, stacks)
    if PARSES_FLAGS & source.modules:
        found += _flags([one for one in given if one.name not in source.own_flags], stack, stacks)
        found += _attributes(source, stack)
    return found + _flags(_keywords(source), stack, stacks)


def _options(arguments: Sequence[str]) -> list[_Option]:
    options = []
    for argument, following in pairwise([*arguments, ""]):
        if not argument.startswith("--"):
            continue
        name, equals, value = argument[2:].partition("=")
        if not equals and not following.startswith("--"):
            value = following
        options.append(_Option(name.replace("-", "_"), value, f"--{name}"))
    names = frozenset(option.name for option in options)
    return [_Option(one.name, one.value, one.text, beside=names) for one in options]


def _keywords(source: Source) -> list[_Option]:
    """Arguments of TrainingArguments in the source that are not switched off there."""
    return [
        _Option(
            keyword.name,
            str(keyword.value or ""),
            f"{keyword.where}: TrainingArguments({keyword.name}=...)",
            in_source=True,
            beside=keyword.beside,
        )
        for keyword in source.keywords
    ]


def _flags(options: Sequence[_Option], stack: Stack, stacks: Mapping[str, Stack]) -> list[Finding]:
    """What of these options the transformers of the stack does not take, or cannot do."""
    text = stack.version("transformers")
    version = numbers(text)
    has = f"transformers {text} of the stack {stack.name}"
    found = []
    for option in options:
        flag = FLAGS.get(option.name)
        off = option.value.lower() in ("false", "0", "no")
        if flag and not flag.taken_by(version):
            gone = bool(flag.gone) and version >= flag.gone
            why = f"{has} {'no longer takes it' if gone else 'does not take it yet'}"
            found.append(Finding(f"{option.text}: {why}", _instead(flag, option, stack)))
        elif option.name in ("ddp_backend", "xpu_backend") and option.value == "ccl":
            if not stack.has_ccl:
                advice = f"leave it out: gloo is the default; {_stacks_with(CCL, stacks=stacks)}"
                why = f"the stack {stack.name} has no oneccl_bind_pt"
                found.append(Finding(f"{option.text} ccl: {why}", advice))
        elif option.name == "use_ipex" and not off and not stack.has_ipex:
            advice = f"leave it out; {NO_IPEX}; {_stacks_with(*IPEX, stacks=stacks)}"
            found.append(Finding(f"{option.text}: the stack {stack.name} has no IPEX", advice))
        elif (
            option.name in ("bf16", "bf16_full_eval") and not off and _refuses_bf16(option, version)
        ):
            advice = "add use_cpu=True" if option.in_source else "add --use_cpu"
            what = f"{option.text}: {has} refuses bf16 on a CPU that it is not told to use"
            found.append(Finding(what, advice))
    return found


def _refuses_bf16(option: _Option, version: tuple[int, ...]) -> bool:
    told = option.beside & {"use_cpu", "no_cuda", "**"}
    return version >= BF16_NEEDS_USE_CPU and not told


def _attributes(source: Source, stack: Stack) -> list[Finding]:
    """Fields of TrainingArguments that the source reads; they may be of something else."""
    text = stack.version("transformers")
    return [
        Finding(
            f"{where}: .{name}: the TrainingArguments of transformers {text} no longer have it",
            "take it out",
            certain=False,
        )
        for name, where in source.attributes.items()
        if name in FLAGS and FLAGS[name].gone and numbers(text) >= FLAGS[name].gone
        if name not in source.own_flags
    ]


def _instead(flag: Flag, option: _Option, stack: Stack) -> str:
    """The advice for one option, in the form that it was written in."""
    ccl = option.value == "ccl" and not stack.has_ccl
    if ccl or (option.name == "xpu_backend" and not option.value):
        return "leave it out: gloo is the default"
    text = flag.instead.replace("{}", option.value or "the same")
    if option.in_source and text.startswith("write --"):
        name, _, rest = text.removeprefix("write --").partition(" ")
        value = repr(option.value) if option.value and rest else "True" if not rest else "..."
        return f"write {name}={value}"
    return text


def _imports(source: Source, stack: Stack, stacks: Mapping[str, Stack]) -> list[Finding]:
    found = []
    binding = stack.version(CCL)
    has_binding = {
        "oneccl_bindings_for_pytorch": bool(binding) and numbers(binding) >= BINDING_RENAMED,
        "torch_ccl": bool(binding) and numbers(binding) < BINDING_RENAMED,
    }
    for one in source.imports:
        if one.module in IPEX and not stack.version(one.module):
            lacks, advice = "IPEX", f"{NO_IPEX}; {_stacks_with(one.module, stacks=stacks)}"
        elif one.module in has_binding and not has_binding[one.module]:
            lacks = "oneccl_bind_pt"
            advice = f"{NO_CCL}; {_stacks_with(CCL, stacks=stacks)}"
            if binding:
                lacks = f"this name of oneccl_bind_pt {binding}"
                advice = f"import {next(name for name, has in has_binding.items() if has)}"
        else:
            continue
        what = f"{one.where}: import {one.module}: the stack {stack.name} has no {lacks}"
        found.append(Finding(what, advice, one.certain))
    return found


def _stacks_with(*packages: str, stacks: Mapping[str, Stack]) -> str:
    """How to get a stack that has one of these packages."""
    having = [stack for stack in stacks.values() if stack.version(*packages)]
    kept = [stack for stack in having if stack.state != "documented"]
    if not kept:
        return f"known to have it: {', '.join(stack.name for stack in having) or 'none'}"
    return f"or set up a stack that has it: ftcluster setup --stack {kept[0].name}"
