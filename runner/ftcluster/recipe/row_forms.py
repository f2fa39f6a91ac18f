"""Descriptions of the rows that each task needs, for whoever has to change the data."""

from typing import assert_never

from ftcluster_common.data.data_files import TABLES, TEXT
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


def row_form(options: Options, answered: bool) -> str:
    """Describe what each row has to have.

    Args:
        answered: whether it has what is predicted, such as a label.
    """
    match options:
        case TextClassification():
            texts = ", ".join(options.text_columns) or "one or two columns of text"
            kind = (
                "a number"
                if options.regression
                else "a word or a number, or a list of them; scores: regression=true"
            )
            label = f" and {options.label_column} ({kind})" if answered else ""
            if options.label_columns and answered:
                label = f" and {', '.join(options.label_columns)} (0 or 1)"
            return f"each row has {texts}{label}"
        case TokenClassification():
            tokens, text = options.tokens_column or "tokens", options.text_column or "text"
            tags, spans = options.tags_column or "tags", options.spans_column or "spans"
            if not answered:
                return f"each row has {tokens} (a list of words), or {text}"
            return (
                f"a file in the form of CoNLL; or each row has {tokens} (a list of words) and "
                f"{tags} (a list as long), or {text} and {spans} (a list of objects with start, "
                "end and label)"
            )
        case QuestionAnswering():
            texts = f"{options.question_column}, {options.context_column} (text)"
            form = '{"text": [...], "answer_start": [...]}, empty lists where there is no answer'
            answers = f" and {options.answers_column} ({form})" if answered else ""
            return f"each row has {texts}{answers}"
        case LanguageModel():
            return f"texts in *{TEXT}; or rows with {options.text_column} in {', '.join(TABLES)}"
        case SentenceSimilarity() if options.distils or not answered:
            return f"each row has {options.query_column or 'a column of text'}"
        case SentenceSimilarity():
            query, positive = options.query_column, options.positive_column
            return (
                f"each row has {query or 'query'}, {positive or 'positive'} (the text that belongs "
                "to it) and, if there are such, negatives (texts that do not); or two texts and a "
                "score"
            )
        case TextRanking():
            texts = f"{options.query_column or 'query'}, {options.text_column or 'text'}"
            label = (
                f" and either {options.label_column} (from 0 to 1) or negatives (texts that do not "
                "belong to the query)"
            )
            return f"each row has {texts}{label if answered else ''}"
        case InstructionTuning():
            prompt = options.prompt_column or "prompt"
            pair = f"{prompt} and {options.completion_column or 'completion'}"
            if not options.chat_template:
                return f"each row has {pair} (text)"
            return (
                f"each row has {options.messages_column or 'messages'} (a list of objects with "
                f"role and content, at least one of the role assistant), or {pair}"
            )
        case PreferenceTuning():
            prompt = options.prompt_column or "prompt"
            answers = f"{options.chosen_column} and {options.rejected_column}"
            if not options.chat_template:
                return f"each row has {prompt}, {answers} (texts)"
            return (
                f"each row has {prompt}, {answers} (texts or lists of messages), or only {answers} "
                "(lists of messages that begin alike)"
            )
        case TextDistillation():
            texts = ", ".join(options.text_columns) or "one or two columns of text"
            return f"each row has {texts} and, if it is known, {options.label_column}"
        case Seq2SeqLm():
            source, target = options.source_column or "source", options.target_column or "target"
            both = f", {target} (the text to write)" if answered else ""
            return (
                f"each row has {source} (the text to read){both}; or translation with a text for "
                "each language: source_lang=en target_lang=de"
            )
    assert_never(options)
