"""Lines of a script that want a GPU, whatever the machine has."""

import ast
import re
from collections.abc import Iterator

GUARDS = ("cuda", "gpu")  # in the condition of what is for machines with one
DEVICE = re.compile(r"cuda(:\d*)?")
NCCL = "nccl"


def gpu_lines(tree: ast.AST) -> list[int]:
    """The lines that set a CUDA device or the backend nccl, and no condition guards.

    Comparisons with such names are none, nor what `init_process_group` is given.
    """
    return sorted(set(_visit(tree)))


def _visit(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.If | ast.IfExp | ast.While) and _guards(node.test):
        return
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            if DEVICE.fullmatch(_text(value)) or _text(value) == NCCL:
                yield node.lineno
        case ast.Call(func=ast.Attribute(attr="cuda")):
            yield node.lineno
        case ast.Call():
            called = ast.unparse(node.func)
            given = [*node.args, *(word.value for word in node.keywords)]
            if (
                called.endswith("cuda.set_device")
                or any(DEVICE.fullmatch(_text(value)) for value in given)
                or (called.endswith(("DDP", "DistributedDataParallel")) and _device_ids(node))
            ):
                yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _visit(child)


def _guards(test: ast.expr) -> bool:
    said = ast.unparse(test).lower()
    return any(word in said for word in GUARDS)


def _device_ids(call: ast.Call) -> bool:
    """Whether it is given devices; DDP takes none for a model on a CPU."""
    return any(
        word.arg == "device_ids"
        and isinstance(word.value, ast.List)
        and not any(isinstance(inner, ast.Constant) for inner in word.value.elts)
        for word in call.keywords
    )


def _text(node: ast.expr) -> str:
    """A text that is written there, or what an f-string begins with."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
