"""Lines of a script that want a GPU, whatever the machine has."""

import ast
import re

GUARDS = re.compile(r"cuda|gpu", re.IGNORECASE)  # in the condition of what is for machines with one
DEVICE = re.compile(r"cuda(:\d*)?")
NCCL = "nccl"


def gpu_lines(tree: ast.AST) -> list[int]:
    """The lines that set a CUDA device or the backend nccl, and no condition guards.

    Comparisons with such names are none, nor what `init_process_group` is given.
    """
    lines: set[int] = set()
    pending = [tree]
    while pending:  # and not by recursion: a script may be nested deeply
        node = pending.pop()
        if isinstance(node, ast.If | ast.IfExp | ast.While) and _guards(node.test):
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Call) and _wants(node):
            lines.add(node.lineno)
    return sorted(lines)


def _wants(node: ast.Assign | ast.AnnAssign | ast.Call) -> bool:
    if not isinstance(node, ast.Call):
        return bool(DEVICE.fullmatch(_text(node.value))) or _text(node.value) == NCCL
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    owner = getattr(getattr(node.func, "value", None), "attr", "")
    given = [*node.args, *(word.value for word in node.keywords)]
    return (
        called == "cuda"
        or (called == "set_device" and owner == "cuda")
        or any(DEVICE.fullmatch(_text(value)) for value in given)
        or (called in ("DDP", "DistributedDataParallel") and _device_ids(node))
    )


def _guards(test: ast.expr) -> bool:
    return any(
        GUARDS.search(str(getattr(node, name)))
        for node in ast.walk(test)
        for name in ("id", "attr", "value")
        if isinstance(getattr(node, name, None), str)
    )


def _device_ids(call: ast.Call) -> bool:
    """Whether it is given devices; DDP takes none for a model on a CPU."""
    return any(
        word.arg == "device_ids"
        and isinstance(word.value, ast.List)
        and not any(isinstance(inner, ast.Constant) for inner in word.value.elts)
        for word in call.keywords
    )


def _text(node: ast.expr | None) -> str:
    """A text that is written there, or what an f-string begins with."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
