"""The guards of all changes of a model or of torch: the table in guards.md.

FTCLUSTER_RENEW_GUARDS=1 writes the table; otherwise the test compares it. A guard's docstring
describes when its change is allowed. All changes have a guard (`tests/unit/test_patching.py`).
"""

import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching.fused_steps import FUSED_ADAMW
from ftcluster_train.patching.kernel_mode import find_head
from ftcluster_train.patching.patch_model import SHARED_KEYS, Optimizations, patch_model
from ftcluster_train.patching.position_bias import POSITION_BIAS
from ftcluster_train.patching.registry import FunctionPatch
from ftcluster_train.patching.script_functions import SCRIPT_FUNCTIONS
from ftcluster_train.patching.script_models import activation_patches
from ftcluster_train.patching.shared_entries import (
    FUSED_MLPS,
    FUSED_RMS_NORMS,
    FUSED_TANH_GELUS,
    PARAMETERS,
    ROTARY_FUNCTION,
    ROTARY_POSITIONS,
)
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS
from ftcluster_train.patching.unpadding import UNPADDED_EMBEDDINGS, UNPADDING
from tests.engine.models import make_model
from tests.engine.test_patching import Task
from tests.programs import ROOT

PAGE = ROOT / "tests/engine/guards.md"
BEGIN, END = "<!-- table: guards -->\n", "<!-- end -->"
HEAD = "| what is changed | `train` | `run --fast` | where | tests in tests/engine |\n"
LINE = "|---|---|---|---|---|\n"
# the changed objects, where they are used, and the guard
OBJECTS: dict[str, tuple[bool, bool, Any]] = {
    "RMSNorms": (True, True, FUSED_RMS_NORMS.guard),
    "MLPs": (True, True, FUSED_MLPS.guard),
    "tanh GELUs": (True, False, FUSED_TANH_GELUS.guard),
    "`apply_rotary_pos_emb`": (True, True, ROTARY_POSITIONS.guard),
    "`create_position_bias_mask`": (True, True, POSITION_BIAS.guard),
    "rows that nothing reads": (True, True, SKIPPED_ROWS.guard),
    "layers of encoders: without padding": (True, True, UNPADDING.guard),
    "embeddings of encoders: without padding": (True, False, UNPADDED_EMBEDDINGS.guard),
    "the last layer of a language model": (True, False, find_head),
    "AdamW and Adam: fused": (False, True, FUSED_ADAMW.guard),
}
UNKNOWN = ("test_guards.py::test_train", "test_guards.py::test_run_fast")
# models or calls for which each change would be wrong
TESTS: dict[str, tuple[str, ...]] = {
    "RMSNorms": (*UNKNOWN, "test_patching.py::test_models_with_fused_modules"),
    "MLPs": (
        *UNKNOWN, "test_guards.py::test_a_change_of_a_model_that_is_fused_already",
        "test_activations.py::test_a_class_that_drops_elsewhere",
    ),
    "tanh GELUs": ("test_activations.py::test_activations", UNKNOWN[0]),
    "`apply_rotary_pos_emb`": UNKNOWN,
    "`create_position_bias_mask`": (
        "test_position_bias.py::test_a_function_that_joins_otherwise_stays",
        "test_position_bias.py::test_functions_of_torch_get_the_joined_mask",
    ),
    "rows that nothing reads": (
        "test_skipped_rows.py::test_models_of_ones_own_have_stocks_gradients",
        "test_fast.py::test_padding_in_front_stays",
    ),
    "layers of encoders: without padding": (
        "test_unpadding.py::test_loss_and_gradients_are_those_of_transformers",
        "test_unpadding.py::test_where_padding_stays",
    ),
    "embeddings of encoders: without padding": (
        "test_unpadding.py::test_loss_and_gradients_are_those_of_transformers",
        "test_unpadding.py::test_positions_are_those_of_the_caller",
    ),
    "the last layer of a language model": ("test_guards.py::test_heads_whose_logits_are_needed",),
    "AdamW and Adam: fused": ("test_fused_steps.py::test_layouts",),
    "`torch.compile`": ("test_guards.py::test_a_compiled_model",),
    "`functional.cross_entropy`": ("test_fast.py::test_what_does_not_fit_is_said_once",),
    "`NewGELUActivation.forward`": UNKNOWN[1:],
    "`FastGELUActivation.forward`": UNKNOWN[1:],
    "`torch.addmm`": UNKNOWN[:1],
    "`functional.embedding`": ("test_guards.py::test_bf16", UNKNOWN[0]),
    **{
        f"`functional.{name}`": (*UNKNOWN, "test_fast.py::test_calls_that_no_kernel_is_made_for")
        for name in (
            "scaled_dot_product_attention", "dropout", "gelu", "silu", "linear", "layer_norm",
        )
    },
}  # fmt: skip


def name_of(entry: FunctionPatch) -> str:
    owner = getattr(entry.owner, "__name__", "").rpartition(".")[2]
    return f"`{owner}.{entry.original.__name__}`"


def changes() -> Iterator[tuple[str, bool, bool, str]]:
    """Return the changes of models, where each applies, and the text of its guards."""
    model = make_model("gpt2", "causal-lm")
    train = patch_model(model, Task(), True, Optimizations(), ProgressLog()).patches
    script = (*SCRIPT_FUNCTIONS, *activation_patches())
    guards = [{name_of(entry): entry.guard for entry in entries} for entries in (train, script)]
    for name in dict.fromkeys(name for of in guards for name in of):
        words = dict.fromkeys(sentence(of[name]) for of in guards if name in of)
        yield name, name in guards[0], name in guards[1], " In scripts: ".join(words)
    for name, (in_train, in_script, guard) in OBJECTS.items():
        yield name, in_train, in_script, sentence(guard)


def sentence(guard: Any) -> str:
    """Return the first paragraph of a guard's docstring as one line."""
    return " ".join((inspect.getdoc(guard) or "").partition("\n\n")[0].split())


def table() -> str:
    rows = []
    for name, in_train, in_script, words in changes():
        marks = " | ".join("yes" if used else "" for used in (in_train, in_script))
        tests = ", ".join(f"`{test}`" for test in TESTS[name])
        rows.append(f"| {name} | {marks} | {words} | {tests} |\n")
    return HEAD + LINE + "".join(rows)


def test_the_page_has_the_guards() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    now, _, behind = rest.partition(END)
    if os.environ.get("FTCLUSTER_RENEW_GUARDS"):
        PAGE.write_text(before + BEGIN + table() + END + behind, encoding="utf-8")
    else:
        assert now == table(), "FTCLUSTER_RENEW_GUARDS=1 renews it"


def test_every_change_has_words_and_tests() -> None:
    found = list(changes())
    assert {name for name, *_ in found} == TESTS.keys()
    assert all(words for *_, words in found)
    for test in {test for tests in TESTS.values() for test in tests}:
        file, _, name = test.partition("::")
        tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
        assert name in {getattr(node, "name", "") for node in tree.body}, test


# --- undocumented names of transformers; each assertion describes the effect of a change


def test_models_call_post_init_when_they_are_made() -> None:
    calls = []
    kind = type("Kind", (transformers.BertModel,), {"post_init": lambda self: calls.append(self)})
    kind(transformers.BertConfig(num_hidden_layers=0, hidden_size=12, vocab_size=9))
    assert calls, "models no longer call post_init: `run --fast` would fuse nothing in new models"


def test_models_know_their_attention() -> None:
    config = transformers.BertConfig(num_hidden_layers=0, hidden_size=12, vocab_size=9)
    model = transformers.BertModel._from_config(config, attn_implementation="eager")
    assert model.config._attn_implementation == "eager", (
        "_attn_implementation has another name: in_use.parts_without_kernel would not say it"
    )


def test_rms_norms_and_rotary_positions_are_found() -> None:
    from transformers.models.llama import modeling_llama

    names = [name for name, kind in vars(modeling_llama).items() if inspect.isclass(kind)]
    assert "LlamaRMSNorm" in names, "RMSNorms have other names: none would be fused"
    assert {"variance_epsilon"} <= vars(modeling_llama.LlamaRMSNorm(4)).keys()
    rotary = inspect.unwrap(getattr(modeling_llama, ROTARY_FUNCTION))
    assert list(inspect.signature(rotary).parameters) == PARAMETERS, (
        f"{ROTARY_FUNCTION} has other arguments: rotary positions would not be fused"
    )


def test_shared_keys_reach_attention_once() -> None:
    """Masked attention is included, for which transformers repeats the keys itself."""
    from transformers.integrations import sdpa_attention

    assert SHARED_KEYS in inspect.getsource(sdpa_attention), (
        f"transformers no longer reads {SHARED_KEYS}: keys would be repeated for each head"
    )


def test_saving_asks_a_model_whether_this_rank_saves() -> None:
    source = inspect.getsource(transformers.PreTrainedModel.save_pretrained)
    assert "should_save_on_this_rank" in source, (
        "save_pretrained asks otherwise which rank saves: only rank 0 of several would save"
    )


def test_modules_keep_their_hooks_where_guards_look() -> None:
    """Hooks are stored only where guards check; a new kind of hooks would be missed."""
    from ftcluster_train.patching.registry import HOOKS

    own = {name for name in vars(nn.Linear(1, 1)) if name.endswith("_hooks")}
    of_state = {name for name in own if "state_dict" in name}
    assert own - of_state == {*HOOKS}, "torch has other kinds of hooks than guards look for"
