"""Metrics of the tasks, fields that contradict each other, and the tasks of GLUE."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ftcluster_common.recipe import (
    SCORE_LOSSES,
    Adapters,
    DecoderTuning,
    InstructionTuning,
    LanguageModel,
    MaskedLm,
    Metric,
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

Contradiction = tuple[str, str]  # the key to change, and what is wrong with its value
RETRIEVAL_METRICS = ("ndcg_at_10", "mrr_at_10", "accuracy_at_1")
# the last but one are of tags that are no entities, as of parts of speech
ENTITY_METRICS = ("precision", "recall", "f1", "accuracy", "f1_macro", "f1_weighted", "loss")
WRITING_METRICS = ("rouge1", "rouge2", "rougeL", "chrf", "bleu", "gen_len")
OF_PAIRS = (
    "positive_column", "negative_columns", "label_column", "query_prompt", "text_prompt",
    "symmetric", "matryoshka_dims", "matryoshka_weights", "hard_negatives",
)  # fmt: skip
REGRESSION_METRICS = ("pearson", "spearman")
CLASS_METRICS = ("accuracy", "f1", "f1_macro", "f1_micro")
# fields that an evaluation's metrics are computed with: other values are another scale
SCALED_BY: Mapping[type[Options], Mapping[str, tuple[str, ...]]] = {
    MaskedLm: dict.fromkeys(("mlm_probability", "whole_word_mask"), ("loss", "perplexity")),
    PreferenceTuning: {"beta": ("loss", "margin"), "label_smoothing_factor": ("loss",)},
    SentenceSimilarity: {"loss": ("loss",), "teacher": ("loss", "cosine")},
    TextDistillation: {
        "temperature": ("loss",), "alpha": ("loss",), "teacher": ("loss", "agreement"),
    },
    TextRanking: {"loss": ("loss",)},
}  # fmt: skip
SPECIAL_TOKENS = 4  # <s> question </s></s> context </s>: no tokenizer is known to add more


def metric_names(options: Options) -> tuple[str, ...]:
    """Return the metrics of a task that may be measured, whatever classes its data have."""
    if isinstance(options, LanguageModel | InstructionTuning):
        return ("loss", "perplexity")
    if isinstance(options, PreferenceTuning):
        return ("loss", "accuracy", "margin")
    if isinstance(options, QuestionAnswering):
        names: tuple[str, ...] = ("exact_match", "f1")
        if options.version_2_with_negative:
            names += ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
        return names
    if isinstance(options, TokenClassification):
        return ENTITY_METRICS
    if isinstance(options, SentenceSimilarity):
        return tuple(_embedding_metrics(options))
    if isinstance(options, TextDistillation):
        return ("loss", "accuracy", "f1_macro", "agreement")
    if isinstance(options, Seq2SeqLm):
        return ("loss", *(WRITING_METRICS if options.predict_with_generate else ()))
    if isinstance(options, TextRanking):
        return (*RETRIEVAL_METRICS, "accuracy", "loss")
    default = REGRESSION_METRICS if options.regression else CLASS_METRICS
    names = (*(options.metrics or default), "loss")
    if len(options.validation_splits) == 1:
        return names
    endings = [split.removeprefix("validation_") for split in options.validation_splits]
    return tuple(f"{name}_{ending}" for ending in endings for name in names)


def comparable_metrics(options: Options, fields: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics of a task that runs with several values of these fields are compared by.

    Args:
        fields: by their names on a command line.
    """
    scaled = SCALED_BY.get(type(options), {})
    plain = (name.removeprefix("options.").removeprefix("training.") for name in fields)
    others = {metric for name in plain for metric in scaled.get(name, ())}
    return tuple(name for name in metric_names(options) if name not in others)


def _embedding_metrics(options: SentenceSimilarity) -> Iterator[str]:
    if options.distils:
        yield from ("cosine", "loss")
        return
    scored = options.loss in SCORE_LOSSES
    names: tuple[str, ...] = () if scored else (*RETRIEVAL_METRICS, "recall_at_10", "recall_at_100")
    names += REGRESSION_METRICS if scored or options.loss == "auto" else ()
    widths = sorted(options.matryoshka_dims)[:-1]
    for ending in ("", *(f"_dim_{width}" for width in widths)):
        yield from (f"{name}{ending}" for name in names)


def _of_embeddings(options: SentenceSimilarity) -> Iterator[Contradiction]:
    if options.distils:
        plain = SentenceSimilarity(loss=options.loss)
        for name in OF_PAIRS:
            if getattr(options, name) != getattr(plain, name):
                yield name, f"loss={options.loss} learns a teacher's embedding of each text alone"
    dims, weights = options.matryoshka_dims, options.matryoshka_weights
    if any(dim < 1 for dim in dims) or len({*dims}) < len(dims):
        yield "matryoshka_dims", "each is a number of its own above 0"
    if weights and len(weights) != len(dims):
        yield (
            "matryoshka_weights",
            f"there are {len(weights)} weights for {len(dims)} of matryoshka_dims: one for each",
        )
    if any(not 0 < weight < math.inf for weight in weights):
        yield "matryoshka_weights", "each is a number above 0"
    first, last = options.range_min, options.range_max
    if last is not None and last - first < options.hard_negatives:
        yield (
            "range_max",
            f"from range_min {first} to range_max {last} are not {options.hard_negatives} texts",
        )
    if options.loss in SCORE_LOSSES:
        for name in ("negative_columns", "hard_negatives"):
            if getattr(options, name):
                yield name, f"a pair with a score has no negatives: loss={options.loss}"
        if options.symmetric:
            yield "symmetric", "it is of the loss ranking"


def contradictions(options: Options) -> Iterator[Contradiction]:
    """Fields of a task that are valid by themselves, but not together."""
    if isinstance(options, TextClassification):
        wrong = [
            name
            for name in options.metrics or ()
            if (name in REGRESSION_METRICS) != options.regression
        ]
        if wrong:
            kind = "a regression" if options.regression else "classes"
            yield "metrics", f"{', '.join(wrong)} cannot be measured of {kind}"
        for name in ("class_weights", "label_columns", "all_probabilities"):
            if options.regression and getattr(options, name):
                yield name, f"{name} is for classes, and regression predicts a number"
        if isinstance(options.class_weights, Mapping):
            for name, weight in options.class_weights.items():
                if isinstance(weight, bool) or not 0 < weight < math.inf:
                    yield "class_weights", f"the weight of {name} is {weight}, not a number above 0"
    if isinstance(options, SentenceSimilarity):
        yield from _of_embeddings(options)
    if isinstance(options, InstructionTuning):
        pair = [name for name in ("prompt_column", "completion_column") if getattr(options, name)]
        if options.messages_column and pair:
            yield (
                pair[0],
                "rows have either messages (messages_column) or a prompt and a completion",
            )
        if options.messages_column and not options.chat_template:
            yield "messages_column", "messages need a chat template: chat_template: true"
    if isinstance(options, Adapters) and options.lora_r is None:
        plain = DecoderTuning() if isinstance(options, DecoderTuning) else Adapters()
        of_adapters = ("lora_alpha", "lora_dropout", "lora_target_modules", "load_in_4bit")
        for name in (*of_adapters, "merge_adapters"):
            if getattr(options, name, None) != getattr(plain, name, None):
                yield name, f"{name} is for adapters, whose rank is lora_r: 16"
    if isinstance(options, TokenClassification):
        if options.max_length <= options.doc_stride + SPECIAL_TOKENS:
            yield (
                "doc_stride",
                f"windows of {options.max_length} tokens, {SPECIAL_TOKENS} of them special ones, "
                f"cannot share {options.doc_stride}; use a quarter: {options.max_length // 4}",
            )
        both = [name for name in ("tokens_column", "text_column") if getattr(options, name)]
        if len(both) > 1:
            yield "text_column", "rows have either words (tokens_column) or a text"
    if isinstance(options, Seq2SeqLm) and bool(options.source_lang) != bool(options.target_lang):
        name = "target_lang" if options.source_lang else "source_lang"
        yield name, "a translation has two languages: source_lang and target_lang"
    if not isinstance(options, QuestionAnswering):
        return
    if options.max_length <= options.max_query_length + options.doc_stride + SPECIAL_TOKENS:
        less = options.max_length // 4
        fits = 2 * less + SPECIAL_TOKENS < options.max_length
        hint = f"; max_query_length={less} and doc_stride={less} would fit" if fits else ""
        yield (
            "max_length",
            f"{options.max_length} tokens leave no room for a context, where a question has up to "
            f"{options.max_query_length} (max_query_length), features share {options.doc_stride} "
            f"(doc_stride), and {SPECIAL_TOKENS} are special{hint}",
        )
    if options.null_score_diff_threshold and not options.version_2_with_negative:
        yield (
            "null_score_diff_threshold",
            "it is for questions without an answer: version_2_with_negative: true",
        )


@dataclass(frozen=True)
class Glue:
    """A task of GLUE, as nyu-mll/glue on the Hub has it and run_glue evaluates it."""

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
