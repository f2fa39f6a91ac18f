"""Features that a script uses and a stack lacks; tests/engine tests transformers' arguments."""

from pathlib import Path

import pytest

from ftcluster.user_script.compatibility import (
    Incompatibility,
    incompatibilities,
    other_backends,
)
from ftcluster.user_script.source import read_source
from tests.unit.clusters import STACKS

PARSER = "from transformers import HfArgumentParser, TrainingArguments\n"
IPEX, CCL = "import intel_extension_for_pytorch as ipex", "import oneccl_bindings_for_pytorch"


def found(folder: Path, stack: str, words: str, text: str = PARSER) -> list[Incompatibility]:
    (folder / "train.py").write_text(text)
    source = read_source(folder / "train.py", folder)
    return incompatibilities(source, words.split(), STACKS[stack], STACKS)


@pytest.mark.parametrize(
    ("stack", "words", "names"),
    [
        ("native", "no_cuda use_ipex xpu_backend ddp_backend overwrite_output_dir",
         "no_cuda use_ipex xpu_backend ddp_backend overwrite_output_dir"),
        ("native", "use_cpu eval_strategy learning_rate", ""),
        ("intel-2.8", "no_cuda use_ipex overwrite_output_dir ddp_backend xpu_backend",
         "ddp_backend xpu_backend"),
        ("intel-2.7", "xpu_backend ddp_backend", "xpu_backend"),
        ("native", "bf16", "bf16"),
        ("native", "bf16 use_cpu", ""),
        ("intel-2.8", "bf16 no_cuda", ""),
        ("intel-2.7", "bf16", ""),  # these versions allowed it
    ],
)  # fmt: skip
def test_flags_by_stack(tmp_path: Path, stack: str, words: str, names: str) -> None:
    values = {"xpu_backend": "ccl", "ddp_backend": "ccl"}
    flags = [f"--{name} {values.get(name, '')}" for name in words.split()]
    problems = found(tmp_path, stack, " ".join(flags))
    assert [one.what.partition(":")[0] for one in problems] == [f"--{n}" for n in names.split()]
    assert all(one.certain and one.hint for one in problems)
    joined = [f"--{n.replace('_', '-')}={values.get(n, '')}" for n in words.split()]
    assert found(tmp_path, stack, " ".join(joined)) == problems


@pytest.mark.parametrize(
    ("stack", "backend", "hint"),
    [
        ("native", "mpi", "remove it: the planned backend is used"),
        ("native", "ccl", "remove it: the planned backend is used; stacks with it: intel-2.7"),
        ("native", "gloo", ""),
        ("native", "impi", ""),
        ("intel-2.7", "ccl", ""),
    ],
)
def test_backends_that_a_stack_does_not_have(
    tmp_path: Path, stack: str, backend: str, hint: str
) -> None:
    for words, text in (
        (f"--ddp_backend {backend}", PARSER),
        ("", f'TrainingArguments("x", ddp_backend="{backend}")'),
    ):
        problems = found(tmp_path, stack, words, text)
        assert [one.hint.startswith(hint) and one.certain for one in problems] == [True] * bool(
            hint
        )


def test_what_may_fail_is_a_note(tmp_path: Path) -> None:
    text = (
        "import torch.multiprocessing as mp\nif cuda:\n    dist.init_process_group('nccl')\n"
        "else:\n    mp.spawn(train, nprocs=2)\n"
    )
    problems = found(tmp_path, "native", "", text)
    assert [(one.what.partition(": ")[0], one.certain) for one in problems] == [
        ("train.py:3", False),
        ("train.py:5", False),
    ]


def test_packages_that_the_stack_lacks_are_named(tmp_path: Path) -> None:
    text = "import evaluate\nimport datasets, tokenizers\ntry:\n    import hydra\nfinally: pass\n"
    problems = found(tmp_path, "native", "", text)
    assert [(one.hint.rpartition(" ")[2], one.certain) for one in problems] == [
        ("evaluate", True),
        ("hydra-core", False),
    ]
    source = read_source(tmp_path / "train.py", tmp_path)
    assert incompatibilities(source, [], STACKS["native"], STACKS, brings=True) == []
    (tmp_path / "evaluate.py").touch()  # the script's own module
    assert len(found(tmp_path, "native", "", text)) == 1


def test_lines_that_want_a_gpu_are_named(tmp_path: Path) -> None:
    text = """backend = 'nccl'
device = "cuda:0" if torch.cuda.is_available() else "cpu"
if ddp:
    device = f'cuda:{local_rank}'
    torch.cuda.set_device(device)
print("cuda is not there", device == "cuda")
if device_type == 'cuda':
    model.cuda()
ctx = torch.autocast("cuda")
model = DDP(model, device_ids=[local_rank])
model = DDP(model, device_ids=None)
x = x.cuda(non_blocking=True)
"""
    [one] = found(tmp_path, "native", "", text)
    assert one.what.startswith("train.py:1, 4, 5, 9, 10, 12: uses a GPU")
    assert not one.certain


@pytest.mark.parametrize(
    ("words", "text", "where"),
    [
        ("", "dist.init_process_group('gloo')", "train.py:1: "),
        ("", "dist.init_process_group(backend='gloo')", "train.py:1: "),
        ("", "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend='gloo')])",
         "train.py:1: "),
        ("", "TrainingArguments('x', ddp_backend='gloo')", "train.py:1: "),
        ("--ddp_backend gloo", PARSER, "ddp_backend=gloo: "),
        ("--ddp_backend impi", PARSER, ""),
        ("--ddp_backend gloo", "parser.add_argument('--ddp_backend')", ""),
        ("", "dist.init_process_group(os.environ['FTCLUSTER_BACKEND'])", ""),
        ("", "dist.init_process_group('nccl' if cuda else 'gloo')", ""),
        ("", "dist.init_process_group()", ""),
    ],
)  # fmt: skip
def test_another_backend_than_the_planned_one_is_said(
    tmp_path: Path, words: str, text: str, where: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    source = read_source(tmp_path / "train.py", tmp_path)
    said = other_backends(source, words.split(), STACKS["native"], "impi")
    assert [one.startswith(where) for one in said] == [True] * bool(where)
    assert other_backends(source, words.split(), STACKS["native"], "gloo") == (
        ["ddp_backend=impi: impi is used instead of the planned gloo"] if "impi" in words else []
    )


@pytest.mark.parametrize(
    "words", ["no_cuda -no_cuda --learning_rate=--no_cuda", "--bf16 False", "--local_rank=1"]
)
def test_what_is_fine(tmp_path: Path, words: str) -> None:
    assert found(tmp_path, "native", words) == []


@pytest.mark.parametrize(
    "text",
    [
        PARSER + "p.add_argument('--no_cuda')",
        "import torch",
    ],
)
def test_flags_that_are_the_scripts_own(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, "native", "--no_cuda", text) == []


def test_arguments_in_the_source(tmp_path: Path) -> None:
    text = PARSER + 'TrainingArguments("x", no_cuda=True, evaluation_strategy="steps", bf16=True)'
    problems = found(tmp_path, "native", "", text)
    assert [one.hint for one in problems] == ["write use_cpu", "write eval_strategy"]
    assert problems[0].what.startswith("train.py:2: TrainingArguments(no_cuda=...): ")
    [bf16] = found(tmp_path, "native", "", "TrainingArguments(bf16=True)")
    assert bf16.hint == "add use_cpu"
    assert found(tmp_path, "native", "", "TrainingArguments(bf16=True, **more)") == []


def test_nothing_is_certain_of_a_script_that_is_only_on_the_hosts() -> None:
    problems = incompatibilities(None, ["--no_cuda"], STACKS["native"], STACKS)
    assert [one.certain for one in problems] == [False]


@pytest.mark.parametrize(
    ("stack", "text", "hint"),
    [
        ("native", IPEX, "--stack intel-2.8"),
        ("native", CCL, "--stack intel-2.7"),
        ("native", "import torch_ipex", "intel-1.9"),
        ("intel-2.8", CCL, 'backend "impi" or "gloo"'),
        ("intel-2.7", "import torch_ccl", "import oneccl_bindings_for_pytorch"),
        ("intel-2.7", f"{IPEX}\n{CCL}", ""),
    ],
)
def test_imports_of_what_the_stack_does_not_have(
    tmp_path: Path, stack: str, text: str, hint: str
) -> None:
    problems = found(tmp_path, stack, "", text)
    assert [hint in one.hint and one.certain for one in problems] == [True] * bool(hint)
