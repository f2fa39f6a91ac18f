"""What scripts of older times ask for, by the transformers of each stack."""

from pathlib import Path

import pytest

from ftcluster.stacks.catalog import numbers
from ftcluster.user_script.compatibility import FLAGS, Finding, find_old
from ftcluster.user_script.source import Source, read_source
from tests.unit.clusters import STACKS

TRAINER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
# read off the class TrainingArguments of each release: which of these fields it has
VERSIONS = ("4.19.4", "4.22.2", "4.24.0", "4.28.1", "4.31.0", "4.35.2", "4.38.2", "4.41.2",
            "4.44.2", "4.46.3", "4.48.3", "4.51.3", "4.55.4", "5.23.0")  # fmt: skip
HAVE = {
    "no_cuda": "yyyyyyyyyyyyyn",
    "use_cpu": "nnnnnyyyyyyyyy",
    "use_ipex": "nyyyyyyyyyyyyn",
    "jit_mode_eval": "nyyyyyyyyyyyyn",
    "xpu_backend": "yyyyynnnnnnnnn",
    "ddp_backend": "nnnnyyyyyyyyyy",
    "overwrite_output_dir": "yyyyyyyyyyyyyn",
    "evaluation_strategy": "yyyyyyyyyyynnn",
    "eval_strategy": "nnnnnnnyyyyyyy",
    "use_mps_device": "nyyyyyyyyyyyyn",
    "save_safetensors": "nnnyyyyyyyyyyn",
    "group_by_length": "yyyyyyyyyyyyyn",
    "warmup_ratio": "yyyyyyyyyyyyyn",
    "local_rank": "yyyyyyyyyyyyyy",
}


@pytest.mark.parametrize("name", HAVE)
def test_the_table_is_transformers_own(name: str) -> None:
    flag = FLAGS.get(name)
    assert "".join(
        "y" if flag is None or flag.taken_by(numbers(version)) else "n" for version in VERSIONS
    ) == HAVE[name]  # fmt: skip


def test_versions_that_are_known_from_elsewhere() -> None:
    assert not FLAGS["use_ipex"].taken_by((4, 57, 6))
    assert not FLAGS["no_cuda"].taken_by((5, 0, 0))
    assert not FLAGS["overwrite_output_dir"].taken_by((5, 0, 0))


def source(folder: Path, text: str) -> Source:
    (folder / "train.py").write_text(text)
    return read_source(folder / "train.py", folder)


def found(folder: Path, stack: str, words: str, text: str = TRAINER) -> list[Finding]:
    return find_old(source(folder, text), words.split(), STACKS[stack], STACKS)


def summary(findings: list[Finding]) -> dict[str, str]:
    """The advice on each flag, without its reasons."""
    return {
        one.what.split(":")[0].removeprefix("--"): one.instead.split(";")[0] for one in findings
    }


OLD = (
    "--no_cuda --use_ipex --xpu_backend ccl --ddp_backend ccl --local_rank 0 --overwrite_output_dir"
)


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        (
            "native",
            {
                "no_cuda": "write --use_cpu",
                "use_ipex": "leave it out",
                "xpu_backend": "leave it out: gloo is the default",
                "ddp_backend ccl": "leave it out: gloo is the default",
                "overwrite_output_dir": "leave it out: Trainer now writes into a folder that is "
                "not empty anyway",
            },
        ),
        (
            "intel-2.8",
            {
                "xpu_backend": "leave it out: gloo is the default",
                "ddp_backend ccl": "leave it out: gloo is the default",
            },
        ),
        ("intel-2.7", {"xpu_backend": "write --ddp_backend ccl"}),
        ("intel-1.13", {"ddp_backend": "write --xpu_backend ccl"}),
    ],
)
def test_the_flags_of_the_old_recipes(tmp_path: Path, stack: str, said: dict[str, str]) -> None:
    assert summary(found(tmp_path, stack, OLD)) == said
    joined = OLD.replace(" ccl", "=ccl").replace("_", "-").replace("local-rank 0", "local-rank=0")
    assert list(summary(found(tmp_path, stack, joined)).values()) == list(said.values())


def test_everything_that_is_found_is_certain(tmp_path: Path) -> None:
    assert all(one.certain for one in found(tmp_path, "native", OLD))


@pytest.mark.parametrize(
    "words",
    [
        "--use_cpu --ddp_backend gloo --eval_strategy epoch --output_dir x",
        "no_cuda -no_cuda --learning_rate=--no_cuda",
        "--bf16 --use_cpu",
        "--bf16 False",
        "--local_rank=1",
    ],
)
def test_what_is_fine_today(tmp_path: Path, words: str) -> None:
    assert found(tmp_path, "native", words) == []


def test_bf16_needs_use_cpu(tmp_path: Path) -> None:
    for stack in ("native", "intel-2.8"):
        [one] = found(tmp_path, stack, "--bf16")
        assert one.instead == "add --use_cpu"
    assert found(tmp_path, "intel-2.7", "--bf16") == []  # was let through then
    assert found(tmp_path, "intel-2.8", "--bf16 --no_cuda") == []


@pytest.mark.parametrize(
    "text",
    [
        "import argparse\np.add_argument('--no_cuda')",
        TRAINER + "p.add_argument('--no_cuda')",
        TRAINER + "@dataclass\nclass Mine:\n    no_cuda: bool = False",
        "import torch",
    ],
)
def test_flags_that_are_the_scripts_own(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, "native", "--no_cuda", text) == []


def test_arguments_in_the_source(tmp_path: Path) -> None:
    text = (
        TRAINER + 'a = TrainingArguments("x", no_cuda=True, evaluation_strategy="steps", bf16=True)'
    )
    findings = found(tmp_path, "native", "", text)
    assert [one.instead for one in findings] == [
        "write use_cpu=True",
        "write eval_strategy='steps'",
    ]
    assert findings[0].what.startswith("train.py:2: TrainingArguments(no_cuda=...): ")
    [bf16] = found(tmp_path, "native", "", TRAINER + "TrainingArguments(bf16=True)")
    assert bf16.instead == "add use_cpu=True"
    assert found(tmp_path, "native", "", TRAINER + "TrainingArguments(bf16=True, **more)") == []
    assert found(tmp_path, "native", "", TRAINER + "TrainingArguments(use_cpu=True)") == []


def test_what_the_source_reads_is_a_note(tmp_path: Path) -> None:
    [one] = found(tmp_path, "native", "", TRAINER + "if args.overwrite_output_dir: pass")
    assert not one.certain
    assert one.what.startswith("train.py:2: .overwrite_output_dir: ")


def test_a_script_on_the_hosts_is_only_warned_of() -> None:
    findings = find_old(None, ["--no_cuda"], STACKS["native"], STACKS)
    assert [one.certain for one in findings] == [False]


IPEX, CCL = "import intel_extension_for_pytorch as ipex", "import oneccl_bindings_for_pytorch"


@pytest.mark.parametrize(
    ("stack", "text", "lacks", "instead"),
    [
        ("native", IPEX, "IPEX", "ftcluster setup --stack intel-2.8"),
        ("native", CCL, "oneccl_bind_pt", "ftcluster setup --stack intel-2.7"),
        ("native", "import torch_ccl", "oneccl_bind_pt", "ftcluster setup --stack intel-2.7"),
        ("intel-2.8", CCL, "oneccl_bind_pt", 'write backend="gloo"'),
        ("intel-2.7", "import torch_ccl", "this name", "import oneccl_bindings_for_pytorch"),
        ("intel-1.11", CCL, "this name", "import torch_ccl"),
        ("native", "import torch_ipex", "IPEX", "known to have it: intel-1.9"),
    ],
)
def test_imports_of_what_the_stack_lacks(
    tmp_path: Path, stack: str, text: str, lacks: str, instead: str
) -> None:
    [one] = found(tmp_path, stack, "", text)
    assert f"the stack {stack} has no {lacks}" in one.what
    assert instead in one.instead
    assert one.certain


@pytest.mark.parametrize(
    ("stack", "text"),
    [("intel-2.8", IPEX), ("intel-2.7", f"{IPEX}\n{CCL}"), ("intel-1.11", "import torch_ccl")],
)
def test_imports_of_what_the_stack_has(tmp_path: Path, stack: str, text: str) -> None:
    assert found(tmp_path, stack, "", text) == []


def test_an_import_that_may_not_be_carried_out_is_a_note(tmp_path: Path) -> None:
    [one] = found(tmp_path, "native", "", f"if args.ipex:\n    {IPEX}")
    assert not one.certain
