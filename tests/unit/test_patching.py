"""Only `ftcluster_train.patching` changes models and functions of torch."""

import ast
from collections.abc import Iterator

import pytest

from tests.programs import ROOT

PACKAGE = ROOT / "train/ftcluster_train"
TORCH = ("torch", "functional", "transformers")  # and everything in these packages
# by file and kind of change, the reason for the change
OTHERS = {
    ("flat_params.py", "register_post_accumulate_grad_hook"): "a gradient is taken, as is",
    ("adapters.py", "register_forward_hook"): "of a saved model that is compared, then dropped",
    ("class_head.py", "setattr"): "a model is loaded: its output layer gets the data's classes",
    ("class_head.py", "set_submodule"): "as above, of a layer within another",
    ("projections.py", "setattr"): "a model is loaded: it gets the layers behind its transformer",
    ("models.py", "set_submodule"): "a model is loaded: bitsandbytes' layers become torch's own",
    ("class_choice.py", "setattr"): "a field of the saved config, which no model reads",
    ("model_lists.py", "setattr"): "transformers reads its list of models once",
    ("ipex.py", "ipex.optimize"): "IPEX is a library that patches models itself, if asked to",
}


def changes(source: str) -> Iterator[str]:
    """Return the kinds of changes in code that may concern a model or torch."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target in getattr(node, "targets", None) or [node.target]:  # type: ignore[union-attr]
                text = ast.unparse(target)
                if isinstance(target, ast.Attribute) and target.attr in ("forward", "__init__"):
                    yield target.attr
                elif text.startswith("sys.modules") or text.partition(".")[0] in TORCH:
                    yield text.partition("[")[0]
        elif isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                if base.endswith(("TorchFunctionMode", "TorchDispatchMode")):
                    yield base.rpartition(".")[2]
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            name = function.rpartition(".")[2]
            hook = name.startswith("register_") and "hook" in name
            if hook or name in ("setattr", "set_submodule") or function == "ipex.optimize":
                yield function if function == "ipex.optimize" else name


def test_nothing_else_changes_a_model_or_torch() -> None:
    found = {
        (path.name, change)
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "patching"
        for change in changes(path.read_text(encoding="utf-8"))
    }
    assert found == OTHERS.keys()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("layer.forward = fast", "forward"),
        ("functional.gelu = gelu", "functional.gelu"),
        ("torch.optim.Adam.__init__ = fused", "__init__"),
        ("setattr(module, name, fast)", "setattr"),
        ("sys.modules['torch'] = other", "sys.modules"),
        ("class Mode(torch.overrides.TorchFunctionMode): pass", "TorchFunctionMode"),
        ("model.register_forward_pre_hook(skip)", "register_forward_pre_hook"),
    ],
)
def test_a_change_is_seen(source: str, kind: str) -> None:
    assert list(changes(source)) == [kind]
