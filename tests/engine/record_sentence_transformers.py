"""Writes what sentence-transformers computes of a few vectors, for tests to compare with.

    PYTHONPATH=SITE python tests/engine/record_sentence_transformers.py

SITE has sentence-transformers 6.2 and what it needs.
"""

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.losses import ListNetLoss, MarginMSELoss
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sparse_encoder.losses import (
    SparseMultipleNegativesRankingLoss,
    SpladeLoss,
)
from sentence_transformers.util import cos_sim, mine_hard_negatives, pairwise_cos_sim
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

FILE = Path(__file__).with_name("sentence_transformers.json")
ROWS, WIDTH = 6, 7
MARGIN = 0.5
LABELS = [0.2, 1.0, 0.6, 0.6, 0.0, -0.4]
LISTS = [[0.9, 0.1, 0.4], [1.0, 0.0], [0.3, 0.2, 0.8, 0.5]]  # labels of the texts of three queries
MARGINS = [[7.5, 1.0, 3.0], [2.0, -1.0, 4.0]]  # a teacher's scores of the texts of two queries
# pairs of a query and a text that belongs to it
PAIRS = [*((n, n) for n in range(12)), (3, 12), (5, 13)]
DOCUMENTS = 24
GUIDED: list[dict[str, Any]] = [
    {"temperature": 0.1},
    {"temperature": 0.05, "margin": 0.2},
    {"temperature": 0.1, "margin_strategy": "relative", "margin": 0.4},
]
MINING: list[dict[str, Any]] = [
    {"num_negatives": 3},
    {"num_negatives": 4, "relative_margin": 0.05},
    {"num_negatives": 3, "absolute_margin": 0.2, "range_min": 2},
    {"num_negatives": 2, "relative_margin": 0.3, "max_score": 0.5, "min_score": -0.2},
    {"num_negatives": 2, "range_min": 1, "range_max": 4, "relative_margin": 0.1},
]


class Given(torch.nn.Module):
    """A model whose input already has the embeddings of the texts, or the scores of the pairs."""

    device = torch.device("cpu")
    max_seq_length, num_labels = None, 1

    def forward(self, features: Any) -> Any:
        return dict(features)

    def preprocess(self, pairs: Any, **_: Any) -> Any:
        return {"scores": torch.stack([score for _, score in pairs])}

    def get_embedding_dimension(self) -> int:
        return WIDTH


class Tokenizing(Given):  # a loss compares the tokenizers
    max_seq_length = 8
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"w": 0})))


class Guide(Tokenizing):
    def forward(self, features: Any) -> Any:
        return {"sentence_embedding": features["guide"]}


class GivenScores(Given, CrossEncoder):  # a loss checks the class
    def __init__(self) -> None:
        torch.nn.Module.__init__(self)


class Search(Given):
    """Embeddings of the texts q0, d0 and so on for a search."""

    def __init__(self, queries: torch.Tensor, documents: torch.Tensor) -> None:
        super().__init__()
        self.vectors = {f"q{n}": one for n, one in enumerate(queries)}
        self.vectors |= {f"d{n}": one for n, one in enumerate(documents)}
        self.similarity, self.similarity_pairwise = cos_sim, pairwise_cos_sim

    def encode_query(self, texts: list[str], **_: Any) -> Any:
        return torch.stack([self.vectors[text] for text in texts]).numpy()

    encode_document = encode_query


def mined() -> dict[str, Any]:
    documents = torch.nn.functional.normalize(torch.randn(DOCUMENTS, 4), dim=-1)
    near = documents[:12] + 0.6 * torch.randn(12, 4)
    queries = torch.nn.functional.normalize(near, dim=-1)
    pairs = {"query": [f"q{q}" for q, _ in PAIRS], "answer": [f"d{d}" for _, d in PAIRS]}
    results = []
    for settings in MINING:
        rows = mine_hard_negatives(
            Dataset.from_dict(pairs), Search(queries, documents),
            corpus=[f"d{n}" for n in range(DOCUMENTS)], verbose=False, **settings,
        )  # fmt: skip
        negatives: list[dict[int, None]] = [{} for _ in queries]
        for row in rows:
            negatives[int(row["query"][1:])][int(row["negative"][1:])] = None
        results.append({"settings": settings, "negatives": list(map(list, negatives))})
    vectors = {"queries": queries.tolist(), "documents": documents.tolist()}
    return {**vectors, "pairs": PAIRS, "results": results}


def searched() -> dict[str, Any]:
    """Return the metrics of the same pairs with less similar vectors."""
    documents, queries = torch.randn(2 * DOCUMENTS, 4), torch.randn(12, 4)
    queries += 0.4 * documents[:12]
    relevant: dict[str, set[str]] = {}
    for query, document in PAIRS:
        relevant.setdefault(f"q{query}", set()).add(f"d{document}")
    texts = {f"d{n}": f"d{n}" for n in range(len(documents))}
    asked = {f"q{n}": f"q{n}" for n in range(len(queries))}
    evaluator = InformationRetrievalEvaluator(
        asked, texts, relevant, accuracy_at_k=[1], precision_recall_at_k=[10],
        mrr_at_k=[10], ndcg_at_k=[10], score_functions={"cosine": cos_sim},
    )  # fmt: skip
    model = Search(queries, documents)
    found = evaluator.compute_all_metrics(model)["cosine"]
    metrics = {name: dict(values) for name, values in found.items()}
    return {"queries": queries.tolist(), "documents": documents.tolist(), "metrics": metrics}


def splade(columns: list[torch.Tensor]) -> dict[str, Any]:
    """SpladeLoss of sparse vectors, which are the positive parts of the columns."""
    leaves = [column.relu().requires_grad_() for column in columns]
    model = Given()
    parts = SpladeLoss(
        model, SparseMultipleNegativesRankingLoss(model), document_regularizer_weight=0.3,
        query_regularizer_weight=0.7,
    )([{"sentence_embedding": leaf} for leaf in leaves])  # fmt: skip
    value = torch.stack(list(parts.values())).sum()
    value.backward()
    return {"loss": value.item(), "gradients": [leaf.grad.tolist() for leaf in leaves]}


def gist(
    columns: list[torch.Tensor], guides: list[torch.Tensor], settings: dict[str, Any]
) -> dict[str, Any]:
    leaves = [column.clone().requires_grad_() for column in columns]
    features = [
        {"sentence_embedding": leaf, "guide": guide}
        for leaf, guide in zip(leaves, guides, strict=True)
    ]
    value = losses.GISTEmbedLoss(Tokenizing(), Guide(), **settings)(features, None)
    value.backward()
    return {"loss": value.item(), "gradients": [leaf.grad.tolist() for leaf in leaves]}


def margins(columns: list[torch.Tensor], labels: torch.Tensor, dims: list[int]) -> dict[str, Any]:
    """Return MarginMSELoss of embeddings; `dims` are the widths of MatryoshkaLoss, or empty."""
    leaves = [column.clone().requires_grad_() for column in columns]
    model = Given()
    loss: Any = losses.MarginMSELoss(model)
    if dims:
        loss = losses.MatryoshkaLoss(model, loss, dims)
    value = loss([{"sentence_embedding": leaf} for leaf in leaves], labels)
    value.backward()
    return {
        "columns": [column.tolist() for column in columns], "labels": labels.tolist(),
        "dims": dims, "loss": value.item(), "gradients": [leaf.grad.tolist() for leaf in leaves],
    }  # fmt: skip


def main() -> None:
    torch.manual_seed(1)
    columns = [torch.randn(ROWS, WIDTH) for _ in range(3)]
    model = Given()
    cosent = losses.CoSENTLoss(model)
    made = {
        "ranking": losses.MultipleNegativesRankingLoss(model),
        "ranking, matryoshka": losses.MatryoshkaLoss(
            model, losses.MultipleNegativesRankingLoss(model), [7, 4, 2], [1, 0.5, 2]
        ),
        "cosent": cosent,
        "angle": losses.AnglELoss(model),
        "cosine": losses.CosineSimilarityLoss(model),
        "contrastive": losses.ContrastiveLoss(model),
        "triplet": losses.TripletLoss(model, losses.TripletDistanceMetric.COSINE, MARGIN),
        "cosent, matryoshka": losses.MatryoshkaLoss(model, cosent, [7, 4, 2], [1, 0.5, 2]),
    }
    found: dict[str, Any] = {}
    for name, loss in made.items():
        used = columns if name.startswith(("ranking", "triplet")) else columns[:2]
        leaves = [one.clone().requires_grad_() for one in used]
        value = loss([{"sentence_embedding": one} for one in leaves], torch.tensor(LABELS))
        value.backward()
        found[name] = {"loss": value.item(), "gradients": [one.grad.tolist() for one in leaves]}
    logits = torch.randn(sum(map(len, LISTS)), requires_grad=True)
    texts = [list(part) for part in logits.split(list(map(len, LISTS)))]
    value = ListNetLoss(model, mini_batch_size=-1)(
        [["q"] * len(LISTS), texts], [torch.tensor(one) for one in LISTS]
    )
    value.backward()
    listnet = {"logits": logits.tolist(), "labels": LISTS, "loss": value.item()}
    scores = torch.randn(len(MARGINS) * len(MARGINS[0]), requires_grad=True)
    columns_of_texts = list(scores.view(len(MARGINS), -1).T)
    value = MarginMSELoss(GivenScores())(
        [["q"] * len(MARGINS), *map(list, columns_of_texts)], torch.tensor(MARGINS)
    )
    value.backward()
    margin_mse = {"logits": scores.tolist(), "labels": MARGINS, "loss": value.item()}
    distilled = {}
    for metric in ("mse", "cosine"):
        student = columns[0].clone().requires_grad_()
        value = losses.EmbedDistillLoss(model, metric)(
            [{"sentence_embedding": student}], columns[1]
        )
        value.backward()
        distilled[metric] = {"loss": value.item(), "gradient": student.grad.tolist()}
    torch.manual_seed(2)
    guides = [column + torch.randn(ROWS, WIDTH) for column in columns]
    draw = torch.Generator().manual_seed(3)
    four = [*columns, torch.randn(ROWS, WIDTH, generator=draw)]
    teacher = 4 * torch.randn(ROWS, 3, generator=draw)
    document = {
        "sentence_transformers": sentence_transformers.__version__,
        "columns": [one.tolist() for one in columns],
        "labels": LABELS,
        "losses": found,
        "distilled": distilled,
        "mined": mined(),
        "searched": searched(),
        "listnet": {**listnet, "gradients": logits.grad.tolist()},
        "margin_mse": {**margin_mse, "gradients": scores.grad.tolist()},
        "embedder_margin_mse": [
            margins(columns, teacher[:, 0], []),
            margins(columns, teacher[:, :2], []),
            margins(four, teacher[:, :2], []),
            margins(four, teacher, []),
            margins(four, teacher, [7, 4]),
        ],
        "splade": [splade(columns[:count]) for count in (2, 3)],
        "guides": [guide.tolist() for guide in guides],
        "gist": [
            {"settings": settings, **gist(columns[:count], guides[:count], settings)}
            for count in (2, 3)
            for settings in GUIDED
        ],
    }
    FILE.write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
