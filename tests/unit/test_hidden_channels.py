"""Kernels and patches get inputs only as arguments or in a `BatchContext`."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.programs import ROOT

TRAIN = ROOT / "train"
PACKAGES = (
    "ftcluster_kernels", "ftcluster_train/engine", "ftcluster_train/patching",
    "ftcluster_train/comm",
)  # fmt: skip
OWN = {"self", "cls", "ctx"}  # an object's own attributes, and attributes of an autograd step
OF_TORCH = {"grad", "data"}  # attributes that every tensor of torch has
# by file and object whose attribute is set: the reason why this is not a channel to a kernel
OTHERS = {
    ("attention_heads.py", "call"): "a struct of C, made and passed on by the same function",
    ("attention_heads.py", "size_of"): "the type that a function in C returns",
    ("products.py", "space"): "as above",
    ("nf4.py", "by_block"): "a copy of bitsandbytes' description, made by the same function",
    ("private_torch.py", "function"): "torch.jit.script's own protocol",
    # engine: attributes of models and tasks before and after passes, which no kernel reads
    ("adapters.py", "layer"): "a module gets its adapter, whose parameters are its own",
    ("adapters.py", "model.config"): "a field of the saved config",
    ("checkpoints.py", "model"): "transformers' own switch for saving",
    ("class_head.py", "changed"): "a config of its own, to compare shapes",
    ("class_head.py", "model"): "how the head was loaded, for notices",
    ("class_head.py", "model.config"): "a model is loaded: its config gets the data's classes",
    ("class_head.py", "module"): "as above, in its modules",
    ("class_choice.py", "model.config"): "a field of the saved config",
    ("answer_review.py", "model"): "transformers' settings of generation, if they are reset",
    ("continued.py", "model"): "the adapters that were loaded, for the head's notices",
    ("evaluation.py", "self._task"): "the reference model is freed",
    ("evaluation.py", "task"): "notices of an evaluation",
    ("generation.py", "model.generation_config"): "transformers' settings of generation",
    ("models.py", "loaded"): "which weights were loaded, for notices",
    ("models.py", "plain"): "a new layer gets the weights of the one that it replaces",
    ("models.py", "tokenizer"): "a tokenizer is built",
    ("new_tokens.py", "layer"): "a module gets its trained rows, which are its own",
    ("projections.py", "model"): "a model gets layers, and a class that saves them",
    ("prepare.py", "task"): "the names of metrics of a user's own, before the training",
    ("rank.py", "task"): "what the data are, before the training",
    ("rank.py", "model"): "the folder that has the model's pooling and prompts",
    ("step.py", "self._times"): "tokens are counted",
    ("flat_step.py", "self.adamw"): "the factor of the next step",
    ("sharded_step.py", "self.adamw"): "as above",
    ("optimizer_step.py", "schedule"): "torch's schedule is put after a step",
    ("text_distillation.py", "self.reader"): "which tokenizer reads the texts",
    ("text_ranking.py", "self.tokenizer"): "a setting of transformers' tokenizer",
    ("seq2seq_lm.py", "self.tokenizer"): "as above",
    ("seq2seq_lm.py", "model"): "transformers' settings of generation",
    ("seq2seq_lm.py", "self.reader"): "how empty texts are read",
    ("tokens.py", "tokenizer"): "as above",
    # patching: modules and functions are changed before the first pass, as intended
    ("patch_model.py", "config"): "a copy of the config without dropout",
    ("patch_model.py", "module"): "a module gets that config and no dropout",
    ("loop.py", "traffic"): "one step's exchanges are recorded for the report",
    ("model_lists.py", "lists"): "transformers reads its list of models once",
    ("registry.py", "torch.nn.Module"): "pickles come without patches",
    ("registry.py", "owner"): "a method is extended",
    ("registry.py", "patched"): "the names by which pickle finds a function",
    ("script_functions.py", "patch.owner"): "functions of torch are replaced once in a script",
    ("script_models.py", "patch.owner"): "forward passes of activations, likewise",
    ("script_models.py", "module"): "a module gets another forward pass",
    ("shared_entries.py", "fused.module"): "as above",
    ("shared_entries.py", "patch.owner"): "a model's rotary function is replaced",
    ("shared_entries.py", "layer"): "a small layer for a trial gets its weights",
    ("shared_entries.py", "small"): "as above, and its parts",
    ("biased_mask.py", "mask"): "a tensor of our own class gets its parts",
    ("position_bias.py", "patch.owner"): "transformers' function of position biases is replaced",
    ("unpadding.py", "output"): "what the model returns, with padding again",
}


def set_attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield object and attribute of each assignment and deletion, also by setattr and delattr."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
                yield ast.unparse(node.args[0]), ast.unparse(node.args[1])


def imported(tree: ast.AST) -> set[str]:
    """Return the names that a module has imported."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def channels(source: str) -> Iterator[tuple[str, str]]:
    """Yield statements that set a value others may read: kind, and object or variable."""
    tree = ast.parse(source)
    modules = imported(tree)
    for target, attribute in set_attributes(tree):
        if target.partition(".")[0] in modules:
            yield "import", target
        elif target not in OWN and attribute not in OF_TORCH:
            yield "attribute", target
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from (("global", name) for name in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("ContextVar", "local")
        ):
            yield "thread", ast.unparse(node)
        elif isinstance(node, ast.ClassDef) and "threading.local" in map(ast.unparse, node.bases):
            yield "thread", node.name


@cache
def found() -> set[tuple[str, str, str]]:
    return {
        (path.name, *channel)
        for package in PACKAGES
        for path in (TRAIN / package).rglob("*.py")
        for channel in channels(path.read_text(encoding="utf-8"))
    }


def test_attributes_of_other_objects_are_listed_with_a_reason() -> None:
    others = {(file, target) for file, kind, target in found() if kind in ("attribute", "import")}
    assert others == OTHERS.keys()


def test_one_variable_carries_the_context_and_no_other_is_global() -> None:
    rest = {channel for channel in found() if channel[1] in ("global", "thread")}
    assert rest == {("batch_context.py", "thread", "_Entered")}


def test_no_attribute_of_an_imported_module_is_set_outside_of_patching() -> None:
    assert {(file, target) for file, kind, target in found() if kind == "import"} == {
        ("registry.py", "torch.nn.Module")
    }


@pytest.mark.parametrize(
    ("source", "channel"),
    [
        # as in earlier versions of the packages
        ("parameter.row_gradients, parameter.gradient_sums = [], None", ("attribute", "parameter")),
        ("weight.nf4 = Nf4(state, shape)", ("attribute", "weight")),
        ("for p in model.parameters():\n    p.exact = True", ("attribute", "p")),
        ("del weight.adapter", ("attribute", "weight")),
        ("output.rounded: Copy = copy", ("attribute", "output")),
        ("sums.filled |= True", ("attribute", "sums")),
        ("kernels.pending_gathers = optimizer.pending_gathers", ("attribute", "kernels")),
        ("setattr(tensor, name, value)", ("attribute", "tensor")),
        ("object.__setattr__(layer.weight, 'exact', True)", ("attribute", "layer.weight")),
        ("with context as module.rows: pass", ("attribute", "module")),
        ("from a import norms\nnorms.copies.wanted = True", ("import", "norms.copies")),
        ("import torch\ntorch.rows = 1", ("import", "torch")),
        ("def hook():\n    global rows\n    rows = 1", ("global", "rows")),
        ("rows = threading.local()", ("thread", "threading.local()")),
        ("rows = ContextVar('rows')", ("thread", "ContextVar('rows')")),
        ("class Present(threading.local): pass", ("thread", "Present")),
    ],
)  # fmt: skip
def test_a_channel_is_seen(source: str, channel: tuple[str, str]) -> None:
    assert channel in set(channels(source))


@pytest.mark.parametrize("source", ["parameter.grad = None", "self.rows = 1", "ctx.sums = sums"])
def test_other_assignments_are_not(source: str) -> None:
    assert list(channels(source)) == []
