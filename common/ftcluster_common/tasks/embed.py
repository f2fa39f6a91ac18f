"""The task sentence-similarity: training embeddings of queries and matching texts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Literal

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import (
    LOOKED_AT,
    NEGATIVE,
    TEXTS,
    SearchColumns,
    find_search,
    named_column,
    number_in,
    search_texts,
)
from ftcluster_common.data.data_files import DataError, Row, found_columns
from ftcluster_common.data.row_checks import CheckRow, check_by_reading, check_columns
from ftcluster_common.limits import limited
from ftcluster_common.tasks.classify import REGRESSION_METRICS
from ftcluster_common.tasks.spec import RETRIEVAL_METRICS, Adapters, Contradiction, TaskSpec

ONLINE = "online_contrastive"  # the contrastive loss of the hard pairs of a batch
# losses for pairs with a score
SCORE_LOSSES = ("cosent", "angle", "cosine", "contrastive", ONLINE)
TRIPLET = "triplet"  # the loss for a query, its matching text and the negatives in its row
GIST = "gist"  # the loss that uses in-batch negatives which the teacher rates as less similar
MARGIN_MSE = "margin_mse"  # the loss for a teacher's margins between the texts of a row
DISTILL_KL = "distill_kl_div"  # the loss for the distribution of a teacher's scores of these texts
TEACHER_LOSSES = (MARGIN_MSE, DISTILL_KL)
NO_TEMPERATURE = (
    f"temperature is only for loss={DISTILL_KL}: use scale, which is the inverse: 20 for a "
    "temperature of 0.05"
)
MARGIN_LOSSES = ("contrastive", ONLINE, TRIPLET, GIST)
DISTILL_LOSSES = ("mse", "cosine_distance")  # losses for a teacher's embeddings of texts
OF_PAIRS = (
    "positive_column", "negative_columns", "label_column", "query_prompt", "text_prompt",
    "symmetric", "matryoshka_dims", "matryoshka_weights", "hard_negatives",
)  # fmt: skip
# usual names of columns with the label or the score of a pair
BELONGING = ("label", "labels", "score", "similarity", "similarity_score", "is_duplicate")
# usual names of columns with a teacher's margins or scores
MARGINS = ("label", "labels", "score", "scores", "margin", "margins")


@dataclass(frozen=True)
class SentenceSimilarity(Adapters):
    """Trains embeddings that are similar for a query and the texts that match the query.

    The losses and their fields are the same as in sentence-transformers:

    - `ranking`: a query's negatives are all texts in the batch, on all ranks, that do not belong to
      the query.
    - `triplet`: a query's negatives are only the negatives in its own row.
    - `cosent` and `angle`: the similarities of the pairs in a batch are trained to have the same
      order as the scores of the pairs.
    - `cosine`: the cosine of a pair is trained to equal its score.
    - `contrastive`: the score is 1 for pairs that match and 0 for pairs that do not.
    - `online_contrastive`: like `contrastive`, but only for the hard pairs of a batch: pairs that
      match, but are further apart than the nearest pair that does not; and pairs that do not match,
      but are nearer than the furthest pair that does.
    - `gist`: like `ranking`, with queries and positives of other rows as further negatives. The
      recipe's teacher is the guide: texts that it rates as more similar to the query than the
      query's matching text are not used as negatives.
    - `margin_mse`: the differences between the dot products of a row's texts are trained to equal
      a teacher's differences.
    - `distill_kl_div`: the softmax of the dot products of a row's texts is trained to equal the
      softmax of a teacher's scores.
    - `mse` (mean squared difference) and `cosine_distance` (1 - cosine): the embedding of a text is
      trained to equal the teacher's embedding.

    Attributes:
        query_column: column with queries. Default: detected from the column names.
        positive_column: column with the text that matches the query. Default: detected from the
            column names.
        negative_columns: columns with texts, or lists of texts, that do not match the query.
            Default: all columns named negative, negatives, negative_1 and so on.
        label_column: column with the score of a pair. For margin_mse and distill_kl_div, it
            contains the margins of all negatives (score of the query's text minus score of the
            negative), or a list with the score of the query's text followed by the scores of the
            negatives. Default: detected from the column names.
        max_length: maximum number of tokens of a text; longer texts are truncated.
        pooling: method that computes an embedding from token vectors, named as in
            sentence-transformers. Decoders usually use lasttoken. `auto` uses the pooling in the
            model's folder if sentence-transformers wrote it, otherwise the mean.
        normalize: True if the saved model returns embeddings of length 1. `auto` uses the setting
            in the model's folder; if there is none, it means true, or false for margin_mse and
            distill_kl_div. All other losses use the cosine in any case.
        query_prompt: prompt that is put before each query. Default: the model's prompt for queries,
            or its default prompt if it has no such prompt. `ftcluster predict` uses only the
            default prompt.
        text_prompt: prompt that is put before each text that is not a query. Default: the model's
            prompt for documents, or its default prompt if it has no such prompt.
        loss: loss function. `auto` means cosent if the pairs have scores other than 1, otherwise
            ranking. mse, cosine_distance and gist need the recipe's teacher.
        scale: factor by which cosines are multiplied: the inverse of the temperature. In
            sentence-transformers, the default for gist is 100.
        margin: minimum distance (1 - cosine) of pairs that do not match, for contrastive and
            online_contrastive. For triplet, the minimum difference between the distance of a
            negative and the distance of the matching text; for gist, the same difference as
            measured by the guide. Default: 0.5, and 0 for gist.
        temperature: divisor of the scores of the model and of the teacher, for distill_kl_div.
        margin_strategy: unit of the margin of gist: absolute, or relative for a fraction of the
            guide's cosine of the query and its matching text.
        symmetric: True to also let each text search for its query.
        matryoshka_dims: dimensions of shortened embeddings that are trained too. One of them must
            be the model's full dimension.
        matryoshka_weights: weight in the loss of each of the matryoshka_dims. Default: 1 each.
        hard_negatives: number of hard negatives to add to each query. The model searches for them
            in the texts of all rows before its first step.
        relative_margin: minimum relative margin of hard negatives: their cosine is at most (1 -
            relative_margin) times the cosine of the query's matching text. null turns this limit
            off.
        absolute_margin: minimum absolute margin of hard negatives: their cosine is at most the
            cosine of the query's matching text minus absolute_margin.
        max_score: maximum cosine of hard negatives.
        min_score: minimum cosine of hard negatives.
        range_min: number of nearest candidates to skip in the search for hard negatives.
        range_max: number of nearest candidates to consider in the search for hard negatives.
            Default: all candidates.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    query_column: str | None = None
    positive_column: str | None = None
    negative_columns: tuple[str, ...] = ()
    label_column: str | None = None
    max_length: int = limited(256, at_least=3)
    pooling: Literal[
        "auto", "mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"
    ] = "auto"
    normalize: Literal["auto", True, False] = "auto"
    query_prompt: str | None = None
    text_prompt: str | None = None
    loss: Literal[
        "auto", "ranking", "cosent", "angle", "cosine", "contrastive", "online_contrastive",
        "triplet", "gist", "margin_mse", "distill_kl_div", "mse", "cosine_distance",
    ] = "auto"  # fmt: skip
    scale: float = limited(20.0, above=0)
    margin: float | None = limited(None, at_least=0, at_most=2)
    temperature: float = limited(1.0, above=0)
    margin_strategy: Literal["absolute", "relative"] = "absolute"
    symmetric: bool = False
    matryoshka_dims: tuple[int, ...] = ()
    matryoshka_weights: tuple[float, ...] = ()
    hard_negatives: int = limited(0, at_least=0, at_most=100)
    relative_margin: float | None = limited(0.05, at_least=0)
    absolute_margin: float | None = limited(None, at_least=0)
    max_score: float | None = limited(None, at_least=-1, at_most=1)
    min_score: float | None = limited(None, at_least=-1, at_most=1)
    range_min: int = limited(0, at_least=0)
    range_max: int | None = limited(None, at_least=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    @property
    def distils(self) -> bool:
        """True if the loss compares embeddings of single texts with a teacher's embeddings."""
        return self.loss in DISTILL_LOSSES

    @property
    def reads_scores(self) -> bool:
        """True if the loss uses the scores of pairs."""
        return self.loss in SCORE_LOSSES

    @property
    def reads_margins(self) -> bool:
        """True if the loss uses a teacher's scores, which are read as margins of the negatives."""
        return self.loss in TEACHER_LOSSES

    @property
    def least_margin(self) -> float:
        """The value of margin, or its default for the loss."""
        if self.margin is not None:
            return self.margin
        return 0.0 if self.loss == GIST else 0.5


def search_columns(options: SentenceSimilarity, columns: Sequence[str]) -> SearchColumns:
    """Return the columns with queries and texts.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    query, positive = find_search(options.query_column, options.positive_column, columns)
    scored = options.loss if options.reads_scores else ""
    negatives = options.negative_columns or tuple(filter(NEGATIVE.fullmatch, columns))
    negatives = () if scored else negatives
    names = {name.lower(): name for name in columns}
    read = (query, positive, *negatives)
    labels = (names[name] for name in BELONGING if name in names and names[name] not in read)
    if options.reads_margins:
        labels = (names[name] for name in MARGINS if name in names and names[name] not in read)
    label = options.label_column or next(labels, "")
    missing = [name for name in (*read, label) if name and name not in columns]
    if not query or not positive or missing or (scored and not label):
        what = f"no column {', '.join(missing)}" if missing else "no usual names for pairs"
        named = f"query_column={query or 'NAME'} positive_column={positive or 'NAME'}"
        if query and positive and scored and not missing:
            what, named = "no column with a usual name for scores", "label_column=NAME"
        raise DataError(f"{what}; {found_columns(columns)}; name the columns: {named}")
    if options.reads_margins:
        return SearchColumns(query, positive, negatives, margins=label)
    return SearchColumns(query, positive, negatives, label, scored)


def with_loss(options: SentenceSimilarity, rows: Iterable[Row]) -> SentenceSimilarity:
    """Return the options with the loss set; the first rows determine what `auto` means.

    >>> row = {"sentence1": "a", "sentence2": "b", "score": 3.8}
    >>> with_loss(SentenceSimilarity(), [row]).loss
    'cosent'
    >>> with_loss(SentenceSimilarity(), [{**row, "score": 1}]).loss
    'ranking'
    """
    if options.loss != "auto":
        return options
    first = list(islice(rows, LOOKED_AT))
    try:
        pair = search_columns(options, list(first[0]) if first else [])
    except DataError:  # the error is reported in more detail when the rows are read
        return options
    scores = [number_in(row.get(pair.label)) for row in first] if pair.label else []
    scored = not pair.negatives and any(score != 1 for score in scores)
    return replace(options, loss="cosent" if scored and None not in scores else "ranking")


def embedded_column(options: SentenceSimilarity, columns: Sequence[str]) -> str:
    """Return the column with the texts that `ftcluster predict` embeds.

    Raises:
        DataError: there is no such column.
    """
    candidates = ("query", "anchor", *TEXTS)
    column = named_column(options.query_column or candidates[0], candidates, columns)
    if not column:
        raise DataError(
            f"no column {options.query_column or 'with a usual name for texts'}; "
            f"{found_columns(columns)}; name it: query_column=NAME"
        )
    return column


def _embedding_metrics(options: SentenceSimilarity) -> Iterator[str]:
    if options.distils:
        yield from ("cosine", "loss")
        return
    scored = options.reads_scores
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
                yield (
                    name,
                    f"loss={options.loss} trains on single texts and their teacher's embeddings",
                )
    dims, weights = options.matryoshka_dims, options.matryoshka_weights
    if any(dim < 1 for dim in dims) or len({*dims}) < len(dims):
        yield "matryoshka_dims", "they must be distinct whole numbers above 0"
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
    if options.reads_scores:
        for name in ("negative_columns", "hard_negatives"):
            if getattr(options, name):
                yield name, f"a pair with a score has no negatives: loss={options.loss}"
    if options.hard_negatives and options.reads_margins:
        yield (
            "hard_negatives",
            f"the data have no margins for them, which loss={options.loss} needs",
        )
    if options.temperature != 1 and options.loss != DISTILL_KL:
        yield "temperature", NO_TEMPERATURE
    if options.symmetric and options.loss in (*SCORE_LOSSES, TRIPLET, GIST, *TEACHER_LOSSES):
        yield "symmetric", "it is only for loss=ranking"
    if options.margin is not None and options.loss not in MARGIN_LOSSES:
        yield "margin", f"it is only for loss={' and loss='.join(MARGIN_LOSSES)}"
    if options.margin == 0 and options.loss != GIST:
        yield "margin", f"it must be above 0 for loss={options.loss}"
    if options.margin_strategy != "absolute" and options.loss != GIST:
        yield "margin_strategy", f"it is only for loss={GIST}"


class SentenceSimilaritySpec(TaskSpec[SentenceSimilarity]):
    """The declaration of the task sentence-similarity."""

    name = "sentence-similarity"
    fields = SentenceSimilarity
    later_fields = (*TaskSpec.later_fields, "margin", "margin_strategy", "temperature")
    recipe = "embed"
    exported_as = "FeatureExtraction"
    model_recipes = {"Model": ("embed",)}
    scaled_by = {"loss": ("loss",), "teacher": ("loss", "cosine")}
    student = ("embedder", "embed")
    training_fields = (
        *TaskSpec.training_fields,
        "hard_negatives", "margin", "margin_strategy", "temperature", "relative_margin",
        "absolute_margin", "max_score", "min_score", "range_min", "range_max",
    )  # fmt: skip
    set_fields = (
        "loss", "scale", "margin", "temperature", "symmetric", "query_prompt", "text_prompt",
    )  # fmt: skip
    adapter_type = "FEATURE_EXTRACTION"

    def columns(
        self, options: SentenceSimilarity, columns: Sequence[str], answered: bool
    ) -> Columns:
        """Return the columns of pairs, or of single texts for predictions and distillation."""
        if not answered or options.distils:
            return {"text": (embedded_column(options, columns),)}
        pair = search_columns(options, columns)
        return {
            "query": (pair.query,),
            "positive": (pair.positive,),
            "negative": pair.negatives,
            "label": tuple(filter(None, (pair.label, pair.margins))),
        }

    def row_check(
        self, options: SentenceSimilarity, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check that a row contains a valid pair, or a single text."""
        if answered and not options.distils:
            pair = search_columns(options, columns)
            return check_by_reading(partial(search_texts, columns=pair))
        return partial(check_columns, [embedded_column(options, columns)], [])

    def row_form(self, options: SentenceSimilarity, answered: bool) -> str:
        """Describe a row that contains a pair of texts, or a single text."""
        if options.distils or not answered:
            return f"each row has {options.query_column or 'a column of text'}"
        query, positive = options.query_column, options.positive_column
        return (
            f"each row has {query or 'query'}, {positive or 'positive'} (the text that belongs "
            "to it) and optional negatives (texts that do not); or two texts and a "
            "score"
        )

    def metric_names(self, options: SentenceSimilarity) -> tuple[str, ...]:
        """Return the names of the metrics for each dimension of the embeddings."""
        return tuple(_embedding_metrics(options))

    def contradictions(self, options: SentenceSimilarity) -> Iterator[Contradiction]:
        """Yield errors for fields that contradict the loss, and for wrong dimensions or ranges."""
        yield from _of_embeddings(options)

    def with_rows(self, options: SentenceSimilarity, rows: Iterable[Row]) -> SentenceSimilarity:
        """Return the options with the loss set; the labels determine what `auto` means."""
        return with_loss(options, rows)

    def smooths_labels(self, options: SentenceSimilarity) -> bool:
        """Return False, because there are no classes."""
        return False

    def needs_teacher(self, options: SentenceSimilarity) -> bool:
        """Return True if the loss uses the embeddings of a teacher."""
        return options.distils or options.loss == GIST

    def compares_batch(self, options: SentenceSimilarity) -> bool:
        """Return True unless the loss compares each text only with the teacher's embedding."""
        return not options.distils

    def reads_modules(self, options: SentenceSimilarity) -> bool:
        """Return True if the model's folder determines pooling or normalization (`auto`)."""
        return "auto" in (options.pooling, options.normalize)

    def texts_of_a_sample(self, options: SentenceSimilarity) -> int:
        """Return the number of texts per row, without negatives in columns detected by name."""
        if options.distils:
            return 1
        return 2 + len(options.negative_columns) + options.hard_negatives
