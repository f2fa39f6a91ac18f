"""What a task reads each column of its data for, and which it does not. Standard library only."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ftcluster_common.data.columns import (
    LOOKED_AT,
    answering_columns,
    classification_columns,
    distilled_columns,
    embedded_column,
    ranking_columns,
    search_columns,
    text_column,
)
from ftcluster_common.data.conversations import conversation_columns, preference_columns
from ftcluster_common.data.data_files import Row
from ftcluster_common.data.source_target import source_target_columns
from ftcluster_common.data.tagged_words import tagged_columns
from ftcluster_common.recipe import (
    InstructionTuning,
    LanguageModel,
    Options,
    PreferenceTuning,
    QuestionAnswering,
    SentenceSimilarity,
    Seq2SeqLm,
    TextClassification,
    TextDistillation,
    TextRanking,
    TokenClassification,
)

UNREAD = "not read"
ANSWERING = ("question", "context", "answers")
WORDS = 3  # a text has as many; numbers, dates, ids and names have fewer

Columns = Mapping[str, tuple[str, ...]]  # by what they are for


def column_uses(options: Options, columns: Sequence[str], answered: bool) -> Columns:
    """The columns of a task by what they are for, and those that it does not read.

    Raises:
        DataError: they are not those that the task reads.
    """
    uses: dict[str, tuple[str, ...]]
    match options:
        case TextClassification():
            texts, labels = classification_columns(options, columns, answered)
            uses = {"text": texts, "label": labels if answered else ()}
        case TokenClassification():
            named = tagged_columns(options, columns, answered)._asdict()
            uses = {use: (name,) for use, name in named.items() if name}
        case QuestionAnswering():
            read = zip(ANSWERING, answering_columns(options, answered), strict=False)
            uses = {use: (name,) for use, name in read}
        case LanguageModel():
            uses = {"text": (text_column(options, columns),)}
        case SentenceSimilarity() if answered and not options.distils:
            pair = search_columns(options, columns)
            uses = {
                "query": (pair.query,),
                "positive": (pair.positive,),
                "negative": pair.negatives,
                "label": (pair.label,) if pair.label else (),
            }
        case SentenceSimilarity():
            uses = {"text": (embedded_column(options, columns),)}
        case TextRanking():
            (query, text, negatives, *_), label, _ = ranking_columns(options, columns, answered)
            uses = {"query": (query,), "text": (text,), "negative": negatives}
            uses["label"] = (label,) if label else ()
        case InstructionTuning():
            named = conversation_columns(options, columns)._asdict()
            uses = {use: (name,) for use, name in named.items() if name}
            uses["tools"] = tuple(name for name in columns if name == "tools")
        case PreferenceTuning():
            named = preference_columns(options, columns)._asdict()
            uses = {use: (name,) for use, name in named.items() if name}
            uses["tools"] = tuple(name for name in columns if name == "tools")
        case Seq2SeqLm():
            both = source_target_columns(options, columns, answered)
            uses = {"source": (both.source,), "target": (both.target,) if both.target else ()}
        case TextDistillation():
            texts, label = distilled_columns(options, columns)
            uses = {"text": texts, "label": (label,) if label else ()}
    known = {name for names in uses.values() for name in names}
    uses[UNREAD] = tuple(name for name in columns if name not in known)
    return {use: names for use, names in uses.items() if names}


def unread_texts(columns: Columns, rows: Iterable[Row]) -> list[str]:
    """The columns that are not read although most of their cells hold texts, by the first rows.

    >>> rows = [{"id": "a 1", "text": "so it is", "body": "It is not so."}]
    >>> unread_texts({"text": ("text",), UNREAD: ("id", "body")}, rows)
    ['body']
    """
    found = []
    first = list(islice(rows, LOOKED_AT)) if UNREAD in columns else []
    for name in columns.get(UNREAD, ()):
        cells = [row[name] for row in first if row.get(name) not in ("", None)]
        texts = [cell for cell in cells if isinstance(cell, str) and _is_text(cell)]
        if 2 * len(texts) > len(cells):
            found.append(name)
    return found


def _is_text(cell: str) -> bool:
    # of Chinese or Japanese texts, which have no spaces, each letter is about a word
    words = cell.split()
    return len(words) >= WORDS or sum(ord(letter) > 0x2E80 for letter in cell) > 2 * WORDS
