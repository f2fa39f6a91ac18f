"""What can be trained, and the fields that each kind of task has in a recipe.

The names are those of Hugging Face's example scripts run_glue, run_qa and run_clm, where they have
one. `ftcluster_train.job` has the same dataclasses for the hosts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ftcluster.recipe.schema import limited

GlueTask = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]
Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]
Disagreement = tuple[str, str]  # the key to change, and what is wrong with its value
OF_NUMBERS = ("pearson", "spearman")  # the metrics of a regression
SPECIAL_TOKENS = 4  # <s> question </s></s> context </s>: no tokenizer is known to add more


@dataclass(frozen=True)
class TextClassification:
    """One or two texts get a class, or with `regression` a number.

    Attributes:
        text_columns: the columns that the model reads, one or two.
        label_column: the column with the class, an integer from 0; with regression a number.
        glue_task: a task of GLUE; it sets text_columns, regression, metrics, validation_splits and
            data_config where the recipe does not.
        regression: whether labels are numbers; the loss is then the squared error.
        metrics: what is measured; left out, accuracy and, of two classes, F1 of class 1; of a
            regression, the correlations of Pearson and Spearman.
        validation_splits: the sets that are evaluated; with several, metrics carry their names.
        max_length: tokens that a sample is cut at.
    """

    text_columns: tuple[str, ...] = limited(at_most=2)
    label_column: str = "label"
    glue_task: GlueTask | None = None
    regression: bool = False
    metrics: tuple[Metric, ...] | None = None
    validation_splits: tuple[str, ...] = ("validation",)
    max_length: int = limited(128, at_least=1)

    def metric_names(self) -> tuple[str, ...]:
        """What an evaluation may measure; F1 only where there are two classes."""
        measured = self.metrics or (OF_NUMBERS if self.regression else ("accuracy", "f1"))
        names: tuple[str, ...] = (*measured, "loss")
        if len(self.validation_splits) == 1:
            return names
        endings = [split.removeprefix("validation_") for split in self.validation_splits]
        return tuple(f"{name}_{ending}" for ending in endings for name in names)

    def disagreements(self) -> Iterator[Disagreement]:
        """What each field allows and all of them together do not."""
        wrong = [name for name in self.metrics or () if (name in OF_NUMBERS) != self.regression]
        if wrong:
            kind = "a regression" if self.regression else "classes"
            yield "metrics", f"{', '.join(wrong)} cannot be measured of {kind}"


@dataclass(frozen=True)
class QuestionAnswering:
    """The answer to a question is a span of a context, as in SQuAD.

    Attributes:
        question_column: the column with the question.
        context_column: the column with the text that has the answer.
        answers_column: the column with `text` and `answer_start`, a list each.
        max_length: tokens of a feature; a longer context becomes several features.
        doc_stride: tokens that neighbouring features of a context share.
        max_query_length: tokens that a question is cut at.
        n_best_size: how many starts and ends of a feature are tried with each other.
        max_answer_length: tokens of the longest answer.
        version_2_with_negative: whether a question may have no answer, as in SQuAD 2.0; otherwise
            those that have none are left out.
        null_score_diff_threshold: a question has no answer where the score of that is better by
            more than this than the best answer's.
    """

    question_column: str = "question"
    context_column: str = "context"
    answers_column: str = "answers"
    max_length: int = limited(384, at_least=16)
    doc_stride: int = limited(128, at_least=0)
    max_query_length: int = limited(64, at_least=1)
    n_best_size: int = limited(20, at_least=1)
    max_answer_length: int = limited(30, at_least=1)
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def metric_names(self) -> tuple[str, ...]:
        """What an evaluation measures."""
        names: tuple[str, ...] = ("exact_match", "f1")
        if self.version_2_with_negative:
            names += ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
        return names

    def disagreements(self) -> Iterator[Disagreement]:
        """What each field allows and all of them together do not."""
        if self.max_length <= self.max_query_length + self.doc_stride + SPECIAL_TOKENS:
            yield (
                "max_length",
                f"{self.max_length} tokens leave no room for a context, where a question has up to "
                f"{self.max_query_length} (max_query_length), features share {self.doc_stride} "
                f"(doc_stride), and {SPECIAL_TOKENS} are special",
            )
        if self.null_score_diff_threshold and not self.version_2_with_negative:
            yield (
                "null_score_diff_threshold",
                "it is for questions without an answer: version_2_with_negative: true",
            )


@dataclass(frozen=True)
class CausalLm:
    """The next token from those before it; texts are packed into blocks of one length.

    Attributes:
        text_column: the column with the text, where the data are rows.
        block_size: tokens of a sample.
        validation_split_percentage: share of the blocks, from the end, that are kept for validation
            where the data have no validation set.
        vocab_size: with from_scratch and no tokenizer: the tokens of the one that is made from the
            data.
    """

    text_column: str = "text"
    block_size: int = limited(512, at_least=2)
    validation_split_percentage: float = limited(5.0, at_least=0.001, at_most=50)
    vocab_size: int | None = limited(None, at_least=257)

    def metric_names(self) -> tuple[str, ...]:
        """What an evaluation measures."""
        return ("loss", "perplexity")

    def disagreements(self) -> Iterator[Disagreement]:
        """Its fields do not depend on each other."""
        return iter(())


Options = TextClassification | QuestionAnswering | CausalLm
TASKS: dict[str, type[Options]] = {
    "text-classification": TextClassification,
    "question-answering": QuestionAnswering,
    "causal-lm": CausalLm,
}


@dataclass(frozen=True)
class Glue:
    """What one task of GLUE is, as nyu-mll/glue on the Hub has it and run_glue evaluates it."""

    text_columns: tuple[str, ...]
    metrics: tuple[Metric, ...] = ("accuracy",)
    regression: bool = False
    validation_splits: tuple[str, ...] = ("validation",)


# columns: transformers' examples, run_glue.py, task_to_keys; metrics: the paper of GLUE
# (arXiv 1804.07461), table 1
GLUE: dict[str, Glue] = {
    "cola": Glue(("sentence",), ("matthews",)),
    "sst2": Glue(("sentence",)),
    "mrpc": Glue(("sentence1", "sentence2"), ("accuracy", "f1")),
    "qqp": Glue(("question1", "question2"), ("accuracy", "f1")),
    "stsb": Glue(("sentence1", "sentence2"), ("pearson", "spearman"), regression=True),
    "mnli": Glue(
        ("premise", "hypothesis"), validation_splits=("validation_matched", "validation_mismatched")
    ),
    "qnli": Glue(("question", "sentence")),
    "rte": Glue(("sentence1", "sentence2")),
    "wnli": Glue(("sentence1", "sentence2")),
}


def glue_defaults(glue_task: str) -> dict[str, Any]:
    """What `glue_task` sets, by the recipe's keys."""
    return {**vars(GLUE[glue_task]), "data_config": glue_task}
