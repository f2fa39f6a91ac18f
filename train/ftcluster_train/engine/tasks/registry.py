"""Tasks by their name in a recipe."""

from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.chat.instruction_tuning import InstructionTuningTask
from ftcluster_train.engine.tasks.chat.preference_tuning import PreferenceTuningTask
from ftcluster_train.engine.tasks.classify.text_classification import TextClassificationTask
from ftcluster_train.engine.tasks.distill.text_distillation import TextDistillationTask
from ftcluster_train.engine.tasks.embed.embedding_distillation import EmbeddingDistillationTask
from ftcluster_train.engine.tasks.embed.sentence_similarity import SentenceSimilarityTask
from ftcluster_train.engine.tasks.lm.causal_lm import CausalLmTask
from ftcluster_train.engine.tasks.lm.masked_lm import MaskedLmTask
from ftcluster_train.engine.tasks.ner.token_classification import TokenClassificationTask
from ftcluster_train.engine.tasks.rerank.text_ranking import TextRankingTask
from ftcluster_train.engine.tasks.seq2seq.seq2seq_lm import Seq2SeqLmTask
from ftcluster_train.engine.tasks.squad.question_answering import QuestionAnsweringTask

_TASKS: dict[str, type[Task]] = {
    "text-classification": TextClassificationTask,
    "token-classification": TokenClassificationTask,
    "question-answering": QuestionAnsweringTask,
    "causal-lm": CausalLmTask,
    "masked-lm": MaskedLmTask,
    "sentence-similarity": SentenceSimilarityTask,
    "text-ranking": TextRankingTask,
    "instruction-tuning": InstructionTuningTask,
    "preference-tuning": PreferenceTuningTask,
    "seq2seq-lm": Seq2SeqLmTask,
    "text-distillation": TextDistillationTask,
}


def make_task(
    recipe: Recipe, tokenizer: object, purpose: Purpose = "train", trained: object = None
) -> Task:
    """The recipe's task with the model's tokenizer; further arguments are those of a task.

    Raises:
        TrainError: the task cannot use the tokenizer.
    """
    kind = _TASKS[recipe.task]
    if recipe.teacher and purpose == "train" and kind is SentenceSimilarityTask:
        kind = EmbeddingDistillationTask
    return kind(recipe, tokenizer, purpose, trained)
