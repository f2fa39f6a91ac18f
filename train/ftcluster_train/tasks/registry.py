"""Tasks by their name in a recipe."""

from ftcluster_common.recipe import Recipe
from ftcluster_train.tasks.base import Task
from ftcluster_train.tasks.causal_lm import CausalLmTask
from ftcluster_train.tasks.question_answering import QuestionAnsweringTask
from ftcluster_train.tasks.text_classification import TextClassificationTask

_TASKS: dict[str, type[Task]] = {
    "text-classification": TextClassificationTask,
    "question-answering": QuestionAnsweringTask,
    "causal-lm": CausalLmTask,
}


def make_task(recipe: Recipe, tokenizer: object) -> Task:
    """The recipe's task with the model's tokenizer.

    Raises:
        TrainError: the task cannot use the tokenizer.
    """
    return _TASKS[recipe.task](recipe, tokenizer)
