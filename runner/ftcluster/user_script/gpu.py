"""Finds lines of a script that require a GPU unconditionally."""

import ast
import re

GUARDS = re.compile(r"cuda|gpu", re.IGNORECASE)  # names in conditions for machines with a GPU
DEVICE = re.compile(r"cuda(:\d*)?")
NCCL = "nccl"


def gpu_lines(tree: ast.AST) -> list[int]:
    """Return the numbers of lines that select a CUDA device or nccl unconditionally.

    Comparisons with such names do not count. Neither do arguments of `init_process_group`.
    """
    lines: set[int] = set()
    pending = [tree]
    while pending:  # no recursion: a script may be nested deeply
        node = pending.pop()
        if isinstance(node, ast.If | ast.IfExp | ast.While) and _guards(node.test):
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Call) and _selects_gpu(node):
            lines.add(node.lineno)
    return sorted(lines)


def _selects_gpu(node: ast.Assign | ast.AnnAssign | ast.Call) -> bool:
    if not isinstance(node, ast.Call):
        return bool(DEVICE.fullmatch(_text(node.value))) or _text(node.value) == NCCL
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    owner = getattr(getattr(node.func, "value", None), "attr", "")
    arguments = [*node.args, *(word.value for word in node.keywords)]
    return (
        called == "cuda"
        or (called == "set_device" and owner == "cuda")
        or any(DEVICE.fullmatch(_text(value)) for value in arguments)
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
    """Return True if a call passes devices to DDP, which is an error for a model on a CPU."""
    return any(
        word.arg == "device_ids"
        and isinstance(word.value, ast.List)
        and not any(isinstance(inner, ast.Constant) for inner in word.value.elts)
        for word in call.keywords
    )


def _text(node: ast.expr | None) -> str:
    """Return a string constant, or the beginning of an f-string."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
