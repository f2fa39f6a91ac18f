"""The columns of data that a task reads: those that are asked for, or found by their names."""

from collections.abc import Sequence

from ftcluster_common.data_files import DataError
from ftcluster_common.recipe import CausalLm, QuestionAnswering, TextClassification

PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("text1", "text2"), ("text_a", "text_b"), ("question", "sentence"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "comment", "tweet", "message", "body", "document",
    "description", "utterance", "query", "question", "title",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "intent", "emotion", "topic",
    "score", "rating", "stars",
)  # fmt: skip


def classification_columns(
    options: TextClassification, columns: Sequence[str], labelled: bool = True
) -> tuple[tuple[str, ...], str]:
    """The columns with the texts and the label.

    Args:
        columns: those of the data.
        labelled: whether the label is needed; if not, it may be "".

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    texts = options.text_columns or find_texts(columns)
    label = _named(options.label_column, LABELS, columns)
    missing = [name for name in texts if name not in columns]
    if not label and labelled:
        missing.append(options.label_column)
    if missing or not texts:
        guessed = find_texts(columns) or ("NAME",)
        what = f"no column {', '.join(missing)}" if missing else "no column that is known for texts"
        raise DataError(
            f"{what}; found {', '.join(columns) or 'none'}; name them: "
            f"text_columns={','.join(guessed)} label_column={label or 'NAME'}"
        )
    return tuple(texts), label


def find_texts(columns: Sequence[str]) -> tuple[str, ...]:
    """One or two columns that are known for texts.

    >>> find_texts(["id", "Review", "stars"]), find_texts(["premise", "label", "hypothesis"])
    (('Review',), ('premise', 'hypothesis'))
    """
    names = {name.lower(): name for name in columns}
    pairs = [pair for pair in PAIRS if names.keys() >= {*pair}]
    found = pairs[0] if pairs else [name for name in TEXTS if name in names][:1]
    return tuple(names[name] for name in found)


def text_column(options: CausalLm, columns: Sequence[str]) -> str:
    """The column with the text.

    Raises:
        DataError: there is none.
    """
    found = _named(options.text_column, TEXTS, columns)
    if not found:
        raise DataError(
            f"no column {options.text_column}; found {', '.join(columns) or 'none'}; name it: "
            "text_column=NAME"
        )
    return found


def answering_columns(options: QuestionAnswering, answered: bool = True) -> tuple[str, ...]:
    """The columns with question, context and, if it is needed, the answers."""
    columns = (options.question_column, options.context_column, options.answers_column)
    return columns if answered else columns[:2]


def _named(wanted: str, known: Sequence[str], columns: Sequence[str]) -> str:
    """The column that is wanted; if that is the field's default, one that is known; else ""."""
    if wanted in columns or wanted != known[0]:
        return wanted if wanted in columns else ""
    names = {name.lower(): name for name in columns}
    return next((names[name] for name in known if name in names), "")
