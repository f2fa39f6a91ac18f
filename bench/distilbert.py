"""Makes a DistilBERT from a BERT with its weights, without the pooler.

    PYTHON -m bench.distilbert ENCODER

writes the model and the tokenizer into ENCODER/distilbert. DistilBERT has no token types: the
vector of the first type is added to all vectors of positions, as if all tokens had this type.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertModel, DistilBertConfig, DistilBertModel

NAMES = {  # names of the layers of a block
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}


@torch.inference_mode()  # type: ignore[untyped-decorator]
def distilbert_of(bert: BertModel) -> DistilBertModel:
    """Raise ValueError if the result would differ for texts of one type."""
    own = bert.config
    model = DistilBertModel(
        DistilBertConfig(
            vocab_size=own.vocab_size, max_position_embeddings=own.max_position_embeddings,
            n_layers=own.num_hidden_layers, n_heads=own.num_attention_heads, dim=own.hidden_size,
            hidden_dim=own.intermediate_size, activation=own.hidden_act,
        )
    ).eval()  # fmt: skip
    for name in ("word_embeddings", "position_embeddings", "LayerNorm"):
        state = getattr(bert.embeddings, name).state_dict()
        getattr(model.embeddings, name).load_state_dict(state)
    first_type = bert.embeddings.token_type_embeddings.weight[0]
    model.embeddings.position_embeddings.weight.add_(first_type)
    for theirs, block in zip(bert.encoder.layer, model.transformer.layer, strict=True):
        for name, new in NAMES.items():
            block.get_submodule(new).load_state_dict(theirs.get_submodule(name).state_dict())
    tokens = torch.arange(1000, 1016).unsqueeze(0)
    expected, found = (one(input_ids=tokens).last_hidden_state for one in (bert.eval(), model))
    if not torch.allclose(expected, found, atol=1e-4):
        raise ValueError("a DistilBERT with these weights has other outputs than the BERT model")
    return model


if __name__ == "__main__":
    source = Path(sys.argv[1])
    distilbert_of(BertModel.from_pretrained(source)).save_pretrained(source / "distilbert")
    AutoTokenizer.from_pretrained(source).save_pretrained(source / "distilbert")
