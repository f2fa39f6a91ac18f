"""A model that is made from a configuration, without the Hub."""

from transformers import BertConfig, BertForSequenceClassification


def tiny_model() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16,
        )
    )  # fmt: skip
