"""Kinds of training by the names that people know them by: the recipe, or the script to run."""

from collections.abc import Mapping

# of the kinds that have a recipe
RECIPES: Mapping[str, str] = {
    name: recipe
    for recipe, names in {
        "classify": "text-classification sequence-classification classification sentiment-analysis",
        "squad": "question-answering qa",
        "clm": "causal-lm text-generation language-modeling",
        "sft": "instruction-tuning instruct chat",
        "dpo": "preference-tuning preference rlhf",
        "embed": "sentence-similarity sentence-transformers embeddings",
        "rerank": "text-ranking cross-encoder reranker",
    }.items()
    for name in names.split()
}
# of those that have none: what it is, and the script of transformers' examples for it
SCRIPTS: Mapping[str, tuple[str, str]] = {
    name: (what, script)
    for (what, script), names in {
        ("token classification", "run_ner.py"): "ner token-classification pos chunking",
        ("summarization", "run_summarization.py"): "summarization summarize xsum cnn-dailymail",
        ("translation", "run_translation.py"): "translation translate wmt nmt",
        (
            "an encoder-decoder",
            "run_summarization.py",
        ): "seq2seq seq2seq-lm text2text-generation t5",
        ("masked language modelling", "run_mlm.py"): "mlm masked-lm fill-mask pretraining",
        ("multiple choice", "run_swag.py"): "multiple-choice swag",
        ("image classification", "run_image_classification.py"): "image-classification vit",
        ("speech recognition", "run_speech_recognition_ctc.py"): "asr speech-recognition",
    }.items()
    for name in names.split()
}


def known_as(name: str) -> str:
    """A kind of training as it is named above.

    >>> known_as("Token_Classification")
    'token-classification'
    """
    return name.lower().replace("_", "-")
