"""The task multi-vector-encoding: training a vector for each token (ColBERT)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ftcluster_common.limits import limited
from ftcluster_common.tasks.embed import DISTILL_KL
from ftcluster_common.tasks.retrieval import RetrievalOptions, RetrievalSpec
from ftcluster_common.tasks.spec import Contradiction


@dataclass(frozen=True)
class MultiVectorEncoding(RetrievalOptions):
    """Trains an encoder that computes a vector for each token, for late interaction (ColBERT).

    The score of a query and a text is MaxSim (Khattab and Zaharia 2020). For each token of the
    query, MaxSim takes the largest cosine with any token of the text; the score is the sum of these
    cosines. The loss is sentence-transformers' MultiVectorMultipleNegativesRankingLoss. A query's
    negatives are all texts in the batch, on all ranks, that do not belong to the query.

    Attributes:
        query_column: column with queries. Default: detected from the column names.
        positive_column: column with the text that matches the query. Default: detected from the
            column names.
        negative_columns: columns with texts, or lists of texts, that do not match the query.
            Default: all columns named negative, negatives, negative_1 and so on.
        max_length: maximum number of tokens of a text that is not a query; longer texts are
            truncated.
        query_length: maximum number of tokens of a query; longer queries are truncated.
        query_expansion: True to fill up each query with mask tokens to query_length. The vectors of
            the mask tokens are compared too. `auto` uses the setting in the model's folder, or
            false if there is none.
        skip_punctuation: True to leave out the vectors of punctuation in texts that are not
            queries. `auto` uses the setting in the model's folder, or false if there is none.
        dimension: number of elements in each vector. Default: the dimension in the model's folder,
            or 128 if there is none.
        query_prompt: prompt that is put before each query, such as "[Q] ". Default: the model's
            prompt for queries, or its default prompt if it has no such prompt.
        text_prompt: prompt that is put before each text that is not a query, including the texts of
            `ftcluster predict`. Default: the model's prompt for documents, or its default prompt if
            it has no such prompt.
        loss: loss function. `ranking` is the loss above. The others train on a teacher's scores of
            the texts in a row: `margin_mse` (MultiVectorMarginMSELoss) on the differences between
            these scores, and `distill_kl_div` (MultiVectorDistillKLDivLoss) on their softmax.
        label_column: column with a teacher's scores: a list with the score of the query's text,
            followed by the scores of the negatives; or the margins of the negatives (score of the
            query's text minus score of the negative). Default: detected from the column names.
        temperature: divisor of the scores of the model and of the teacher, for distill_kl_div.
        normalize_scores: True to scale the model's scores of a row's texts to the range from 0 to
            1, as PyLate's Distillation does, for distill_kl_div.
        scale: factor by which scores are multiplied: the inverse of the temperature.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    query_column: str | None = None
    positive_column: str | None = None
    negative_columns: tuple[str, ...] = ()
    max_length: int = limited(256, at_least=3)
    query_length: int = limited(32, at_least=3)
    query_expansion: Literal["auto", True, False] = "auto"
    skip_punctuation: Literal["auto", True, False] = "auto"
    dimension: int | None = limited(None, at_least=1)
    query_prompt: str | None = None
    text_prompt: str | None = None
    loss: Literal["ranking", "margin_mse", "distill_kl_div"] = "ranking"
    label_column: str | None = None
    temperature: float = limited(1.0, above=0)
    normalize_scores: bool = False
    scale: float = limited(1.0, above=0)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


class MultiVectorEncodingSpec(RetrievalSpec[MultiVectorEncoding]):
    """The declaration of the task multi-vector-encoding."""

    name = "multi-vector-encoding"
    fields = MultiVectorEncoding
    recipe = "colbert"
    is_multi_vector_encoder = True
    adapter_type = "FEATURE_EXTRACTION"
    training_fields = (*RetrievalSpec.training_fields, "normalize_scores")
    later_fields = (*RetrievalSpec.later_fields, "normalize_scores")

    def contradictions(self, options: MultiVectorEncoding) -> Iterator[Contradiction]:
        """Yield errors for the loss, and for queries that may be longer than other texts."""
        yield from super().contradictions(options)
        if options.normalize_scores and options.loss != DISTILL_KL:
            yield "normalize_scores", f"it is only for loss={DISTILL_KL}"
        if options.query_length > options.max_length:
            yield (
                "query_length",
                f"it is {options.query_length}, more than max_length, which is "
                f"{options.max_length}",
            )
