"""The registry of all tasks, by their names in recipes."""

from typing import Any

from ftcluster_common.tasks.chat import InstructionTuningSpec, PreferenceTuningSpec
from ftcluster_common.tasks.classify import TextClassificationSpec
from ftcluster_common.tasks.distill import TextDistillationSpec
from ftcluster_common.tasks.embed import SentenceSimilaritySpec
from ftcluster_common.tasks.few_shot import FewShotClassificationSpec
from ftcluster_common.tasks.lm import CausalLmSpec, MaskedLmSpec
from ftcluster_common.tasks.multi_vector import MultiVectorEncodingSpec
from ftcluster_common.tasks.ner import TokenClassificationSpec
from ftcluster_common.tasks.rerank import TextRankingSpec
from ftcluster_common.tasks.seq2seq import Seq2SeqLmSpec
from ftcluster_common.tasks.sparse import SparseEncodingSpec
from ftcluster_common.tasks.spec import Options, TaskSpec
from ftcluster_common.tasks.squad import QuestionAnsweringSpec
from ftcluster_common.tasks.unpaired import UnpairedPreferenceTuningSpec

AnyTask = TaskSpec[Any]

TASKS: dict[str, AnyTask] = {}
_BY_FIELDS: dict[type[Options], AnyTask] = {}
DEFAULT_TASK = TextClassificationSpec.name
# order of the tasks in messages; all tasks that are not in this list follow
LISTED = (
    "text-classification", "token-classification", "question-answering", "causal-lm", "masked-lm",
    "sentence-similarity", "sparse-encoding", "multi-vector-encoding", "text-ranking",
    "instruction-tuning", "preference-tuning", "unpaired-preference-tuning", "seq2seq-lm",
    "text-distillation", "few-shot-classification",
)  # fmt: skip


def register(spec: AnyTask) -> None:
    """Register a task, so that recipes can use it.

    Raises:
        ValueError: another task with the same name or the same class of fields is registered.
    """
    if spec.name in TASKS:
        raise ValueError(f"there is a task {spec.name} already: choose another name")
    if spec.fields in _BY_FIELDS:
        raise ValueError(
            f"the class {spec.fields.__name__} belongs to the task {_BY_FIELDS[spec.fields].name}: "
            "derive a dataclass of your own from it"
        )
    TASKS[spec.name] = spec
    _BY_FIELDS[spec.fields] = spec


def forget(spec: AnyTask) -> None:
    """Remove a task. Recipes read later cannot use it; recipes read earlier still can."""
    if TASKS.get(spec.name) is spec:
        del TASKS[spec.name]


def restore(spec: AnyTask) -> None:
    """Register a task again after `forget` removed it.

    Raises:
        ValueError: another task with the same name has been registered since.
    """
    if TASKS.setdefault(spec.name, spec) is not spec:
        raise ValueError(f"there is a task {spec.name} already: choose another name")


def spec_of(options: Options) -> AnyTask:
    """Return the task that these options belong to, according to their class.

    Raises:
        KeyError: no registered task uses this class of fields.
    """
    return _BY_FIELDS[type(options)]


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, in the order in which messages list them."""
    return (*LISTED, *(name for name in TASKS if name not in LISTED))


# If several tasks define the same field, the last task's description is shown.
for _spec in (
    TextClassificationSpec(), QuestionAnsweringSpec(), CausalLmSpec(), SentenceSimilaritySpec(),
    TextRankingSpec(), InstructionTuningSpec(), PreferenceTuningSpec(),
    UnpairedPreferenceTuningSpec(), Seq2SeqLmSpec(), TokenClassificationSpec(), MaskedLmSpec(),
    TextDistillationSpec(), FewShotClassificationSpec(), SparseEncodingSpec(),
    MultiVectorEncodingSpec(),
):  # fmt: skip
    register(_spec)
