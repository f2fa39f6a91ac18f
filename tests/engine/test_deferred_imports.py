"""The imports of a rank leave torch's compiler out, and change nothing for whoever imports it."""

import json
import subprocess
import sys
from typing import Any

import pytest

DEFERRED = """
from ftcluster_train.engine.deferred_imports import import_transformers
import_transformers()
"""
PLAIN = "import transformers.modeling_utils, transformers.generation.utils\n"
IMPORTED = """
import json, sys
print(json.dumps(sorted({"torch._dynamo", "transformers"} & sys.modules.keys())))
"""
# loads a model as a rank does, creates an optimizer, and saves and loads its state
TRAINING = """
import shutil, tempfile, torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification
sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
saved, config = tempfile.mkdtemp(), BertConfig(vocab_size=9, **sizes)
config.save_pretrained(saved)
weights = BertForSequenceClassification(config).state_dict()  # save_pretrained imports the compiler
save_file(weights, f"{saved}/model.safetensors", metadata={"format": "pt"})
model = BertForSequenceClassification.from_pretrained(saved)
shutil.rmtree(saved)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ids = torch.tensor([[1, 2, 3]])
model(ids, labels=torch.tensor([1])).loss.backward()
optimizer.load_state_dict(optimizer.state_dict())
"""
# the functions of transformers that the compiler calls without looking into them
MARKS = """
import json, sys, torch._dynamo
from types import FunctionType
functions = {
    f"{value.__module__}.{value.__qualname__}": value
    for module in [m for name, m in sys.modules.items() if name.startswith("transformers.")]
    for value in vars(module).values()
    if isinstance(value, FunctionType)
}
rules = torch._dynamo.trace_rules
print(json.dumps(sorted(
    name for name, function in functions.items()
    if rules.is_callable_allowed(function) or getattr(function, "_dynamo_marked_constant", False)
)))
"""


def printed(program: str) -> Any:
    """Return the JSON document that a new Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_training_imports_no_compiler() -> None:
    assert printed(DEFERRED + TRAINING + IMPORTED) == ["transformers"]
    # otherwise this version of transformers needs no stand-ins
    assert printed(PLAIN + TRAINING + IMPORTED) == ["torch._dynamo", "transformers"]


def test_the_compiler_gets_the_same_marks_later() -> None:
    marks = printed(PLAIN + MARKS)
    assert marks
    assert printed(DEFERRED + MARKS) == marks


@pytest.mark.parametrize("when", ["in the block", "after it"])
def test_a_compiled_function_excludes_what_was_excluded_in_the_block(when: str) -> None:
    program = f"""
import json, torch
from ftcluster_train.engine.deferred_imports import keep_uncompiled, without_compiler
seen = []
with without_compiler():
    @torch.compiler.disable
    def excluded(x):
        seen.append(torch.compiler.is_compiling())
        return x + 1
    if {when == "in the block"}:
        import torch._dynamo.config
        assert torch._dynamo.config is __import__("sys").modules["torch._dynamo.config"]
        assert torch._dynamo.config.__spec__.origin
        torch._dynamo.config.suppress_errors = False
keep_uncompiled()
excluded(torch.ones(2))
step = torch.compile(lambda x: excluded(x) * 2, backend="eager")
print(json.dumps([step(torch.ones(2)).tolist(), seen]))
"""
    assert printed(program) == [[4.0, 4.0], [False, False]]


@pytest.mark.parametrize(
    "use",
    [
        "from torch._dynamo import config; print(json.dumps(config.verify_correctness))",
        "from torch._dynamo.utils import counters; print(json.dumps(bool(counters)))",
        "from torch._dynamo import OptimizedModule as Base; from types import new_class; "
        "print(json.dumps(new_class('Own', (Base,)).__mro__[1].__name__ != 'OptimizedModule'))",
        "import torch._dynamo; print(json.dumps(torch._dynamo.is_compiling()))",
    ],
)
def test_an_unforeseen_use_gets_the_real_compiler(use: str) -> None:
    program = f"""
import json, sys
from ftcluster_train.engine.deferred_imports import without_compiler
with without_compiler():
    {use}
assert sys.modules["torch._dynamo"].__spec__.origin
"""
    assert printed(program) is False


def test_names_are_looked_up_when_they_are_used() -> None:
    program = """
import json, sys
from ftcluster_train.engine.deferred_imports import without_compiler
with without_compiler():
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
before = [isinstance(1, TransformGetItemToIndex), "torch._dynamo" in sys.modules]
made = TransformGetItemToIndex()
from torch._dynamo import _trace_wrapped_higher_order_op as real
after = [type(made) is real.TransformGetItemToIndex, isinstance(made, TransformGetItemToIndex)]
print(json.dumps([before, after]))
"""
    assert printed(program) == [[False, False], [True, True]]


def test_the_models_are_read_once_and_listed_as_before() -> None:
    program = """
import json, sys
reads = []
sys.addaudithook(
    lambda event, args: reads.append(args[0]) if event == "open" and args[1] == "r" else None
)
{first}
import transformers.models
bert = [path for path in reads if str(path).endswith("/modeling_bert.py")]
print(json.dumps([len(bert), sorted(dir(transformers)), sorted(dir(transformers.models))]))
"""
    plain = printed(program.format(first=""))
    hook = "from ftcluster_train.engine.deferred_imports import read_models_once as r; r()"
    once = printed(program.format(first=hook))
    assert (once[0], plain[0]) == (1, 2)
    assert once[1:] == plain[1:]
    assert "BertModel" in once[1]
