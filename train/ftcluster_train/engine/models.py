"""Loading of a model's configuration, tokenizer and weights; training of a tokenizer."""

import difflib
import errno
import importlib.util
import inspect
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ftcluster_common.recipe import BY_TYPE, Recipe
from ftcluster_kernels.nf4 import in_nf4
from ftcluster_train.engine.data.pieces import Piece
from ftcluster_train.engine.optim.flat_params import fp32_parameters
from ftcluster_train.errors import TrainError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# the settings of the QLoRA paper; blocks have 64 weights
NF4 = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
)

# models whose positions start after the padding token's number (create_position_ids)
POSITIONS_BEHIND_PADDING = frozenset(
    {"camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)  # fmt: skip
DECODER_START = "decoder_start_token_id"  # some configurations lack the field until it is set
END = "<|endoftext|>"  # GPT-2's end-of-text token
MAX_CHARACTERS = 100_000_000  # more text does not change the frequent tokens


def call_model(model: "PreTrainedModel", inputs: Mapping[str, Any]) -> Any:
    """Call a model with the inputs that it accepts.

    BERT's tokenizer makes token types even for DistilBERT, and transformers 4 rejects them.
    """
    accepted = _parameter_names(type(model).forward)
    return model(**{n: value for n, value in inputs.items() if accepted is None or n in accepted})


@cache
def _parameter_names(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return a function's parameter names; None if it accepts any keyword."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a folder.

    Raises:
        TrainError: it cannot be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # from_pretrained may raise any exception of its many readers
        raise TrainError(f"the tokenizer of {folder} cannot be loaded: {error}") from error


def load_config(
    recipe: Recipe, model: str, tokenizer: PreTrainedTokenizerBase, **settings: Any
) -> PretrainedConfig:
    """Return the model's configuration with the recipe's overrides.

    For training from scratch, vocabulary size and special tokens are the tokenizer's.

    Args:
        model: folder, or `config:TYPE`.
        settings: further fields; the recipe's overrides take precedence.

    Raises:
        TrainError: it cannot be loaded, or lacks a field that the recipe overrides.
    """
    plain = _config(model)
    for name in recipe.config_overrides:
        if not hasattr(plain, name) and not (plain.is_encoder_decoder and name == DECODER_START):
            nearest = difflib.get_close_matches(name, plain.to_dict(), n=1)
            guess = f"did you mean {nearest[0]}?" if nearest else ""
            kind = f"the configuration of a {plain.model_type} model"
            raise TrainError(f"config_overrides.{name} is not a field of {kind}", guess)
    if recipe.from_scratch:
        settings = {
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            **(
                {DECODER_START: _decoder_start(plain, tokenizer)}
                if plain.is_encoder_decoder
                else {}
            ),
            **settings,
        }
    # a classifier searches for the last token before the padding
    padding = getattr(plain, "pad_token_id", None)
    behind = plain.model_type in POSITIONS_BEHIND_PADDING and not recipe.from_scratch
    if behind and padding != tokenizer.pad_token_id:
        raise TrainError(
            f"the tokenizer pads with token {tokenizer.pad_token_id}, but the positions of "
            f"{recipe.model} start behind its padding token {padding}",
            "use the model's own tokenizer: tokenizer=DIR",
        )
    settings["pad_token_id"] = tokenizer.pad_token_id
    return _config(model, **{**settings, **recipe.config_overrides})


def plain_config(model: str) -> PretrainedConfig:
    """Return the unchanged configuration in a model's folder.

    Raises:
        TrainError: it cannot be loaded.
    """
    return _config(model)


def _decoder_start(plain: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return a decoder's first token: the end token for BART's kind, padding for T5's kind."""
    start = getattr(plain, DECODER_START, None)
    ends = start is not None and start == plain.eos_token_id
    token: int | None = tokenizer.eos_token_id if ends else None
    return tokenizer.pad_token_id if token is None else token


def _config(model: str, **changes: Any) -> PretrainedConfig:
    try:
        if model.startswith(BY_TYPE):
            return AutoConfig.for_model(model.removeprefix(BY_TYPE), **changes)
        return AutoConfig.from_pretrained(model, trust_remote_code=False, **changes)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise TrainError(
                f"{model} needs Python code of its own, which ftcluster does not execute",
                f"use a model of a type that transformers {transformers.__version__} has",
            ) from error
        raise TrainError(
            f"the configuration of {model} cannot be loaded: {first_line(error)}"
        ) from error


def longest_input(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the lower token limit of configuration and tokenizer; None if there is no limit."""
    limits = []
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        behind = config.model_type in POSITIONS_BEHIND_PADDING
        limits.append(positions - (config.pad_token_id or 0) - 1 if behind else positions)
    if tokenizer.model_max_length < 1e9:  # a tokenizer without a limit has 1e30
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)


def check_quantization(recipe: Recipe, config: PretrainedConfig) -> None:
    """Check that a model's weights can be loaded as the recipe says.

    Quantized weights cannot be trained, and would be saved without their scales.

    Raises:
        TrainError: bitsandbytes is needed but not installed, or the weights are already quantized.
    """
    if recipe.load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise TrainError(
            f"load_in_4bit needs the package bitsandbytes, which {socket.gethostname()} lacks",
            "set the cluster up again: ftcluster setup",
        )
    if found := getattr(config, "quantization_config", None):
        kind = found.get("quant_method") if isinstance(found, dict) else type(found).__name__
        raise TrainError(
            f"the weights of {recipe.model} are already quantized ({kind})",
            "use the model before quantization"
            + "; adapters can be trained with lora_r=16 load_in_4bit=true"
            * recipe.spec.can_train_adapters,
        )


def load_model(
    model_class: Any, recipe: Recipe, model: str, config: PretrainedConfig,
    require_trained_head: bool = False, dtype: torch.dtype = torch.float32, in_4bit: bool = False,
    any_head: bool = False,
) -> "PreTrainedModel":  # fmt: skip
    """Load the model with its own weights or, from scratch, with random weights.

    `new_weights` returns the weights that became random.

    Args:
        model: folder, or `config:TYPE`.
        require_trained_head: True if it needs all weights; otherwise a new head is random.
        dtype: dtype of the weights, except for norms and heads, which are in fp32.
        in_4bit: True to quantize linear layers to NF4, one by one while they are loaded.
        any_head: True to replace weights of another shape by random weights, see
            `mismatched_weights`.

    Raises:
        TrainError: it cannot be loaded, lacks weights, or transformers has no such model for the
            task.
    """
    keyword: dict[str, Any] = {dtype_keyword(transformers.__version__): dtype}
    if in_4bit:
        # bitsandbytes warns at import about a missing kernel for inference
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        keyword["quantization_config"] = NF4
    try:
        if recipe.from_scratch:
            return model_class.from_config(config, **keyword)
        loaded, info = model_class.from_pretrained(
            model,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
            **keyword,
        )
    except Exception as error:  # from_pretrained may raise any exception of its many readers
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        if "Unrecognized configuration class" in str(error):
            raise TrainError(
                f"{recipe.model} is a {config.model_type} model, which transformers "
                f"{transformers.__version__} does not support for {recipe.task}"
            ) from error
        raise TrainError(f"{model} cannot be loaded: {error}") from error
    unfit = loaded.mismatched_weights = {
        name: ([*saved], [*wanted]) for name, saved, wanted in info["mismatched_keys"]
    }
    if unfit and not any_head:
        name, (saved, wanted) = min(unfit.items())
        raise TrainError(
            f"{model} cannot be loaded: its weights {name} have the shape {saved}, but its "
            f"configuration needs {wanted}",
            "config.json and the weights belong to different models",
        )
    missing = loaded.new_weights = sorted({*info["missing_keys"], *unfit})
    if require_trained_head and missing:
        raise TrainError(
            f"{recipe.model} is not trained for {recipe.task}: it has no weights {missing[0]}",
            "use the model of a run: ftcluster fetch RUN DIR, then --model DIR",
        )
    if in_4bit:
        _with_plain_layers(loaded)
    if dtype != torch.float32:
        for parameter in fp32_parameters(loaded):
            parameter.data = parameter.data.float()
    return loaded


def new_weights(model: "PreTrainedModel") -> set[str]:
    """Return the names of a loaded model's weights that its checkpoint lacks."""
    return {*getattr(model, "new_weights", ())}


def mismatched_weights(model: "PreTrainedModel") -> dict[str, tuple[list[int], list[int]]]:
    """Return the shapes in checkpoint and model of weights that were replaced by random ones."""
    return {**getattr(model, "mismatched_weights", {})}


def new_weights_notice(model: "PreTrainedModel", has_all: bool) -> str:
    """Return a notice about weights that a checkpoint lacks but should have, or "".

    Args:
        has_all: True if it should have the head too, like a language model. A classifier's head
            is new, and may start with a pooler.
    """
    base = {w for name, w in model.base_model.named_parameters() if "pooler" not in name}
    new = {
        name: weight.numel()
        for name, weight in model.named_parameters()
        if name in new_weights(model) and weight.requires_grad and (has_all or weight in base)
    }
    if not new:
        return ""
    first, *others = sorted(new)
    return (
        f"RANDOM at first: the checkpoint of {model.name_or_path} has no weights {first}"
        + (f" and {len(others)} more" if others else "")
        + f", {sum(new.values()) / model.num_parameters():.1%} of the model. Only your data "
        "can train them: use a checkpoint that has them, or train for longer"
    )


def dtype_keyword(version: str) -> str:
    """Return the keyword of `from_pretrained` for the dtype of the weights.

    It must be passed: by default transformers 5 uses the checkpoint's dtype, and 4 uses fp32. 4.56
    renamed it (transformers pull request 39782).
    """
    major, minor = (int(number) for number in version.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def _with_plain_layers(model: "PreTrainedModel") -> None:
    """Replace bitsandbytes' linear layers by torch's layers, see `ftcluster_kernels.nf4`."""
    for name, layer in list(model.named_modules()):
        # GPT-2's layers have inputs and outputs in the other order, and get no adapters
        if not (hasattr(layer, "source_cls") and layer.source_cls is nn.Linear):
            continue
        with torch.device("meta"):
            plain = nn.Linear(layer.in_features, layer.out_features, bias=False)
        plain.weight = in_nf4(layer.weight.data, layer.weight.quant_state)
        plain.bias = layer.bias
        model.set_submodule(name, plain)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            # it was a view of the mapped file, which would keep the pages of all weights in memory
            parameter.data = parameter.data.clone()
    model.hf_quantizer.remove_quantization_config(model)  # it would be saved with a merged model


def check_tokens(embeddings: int, largest_token: int, tokenizer: str) -> None:
    """Check that a model has an embedding for each token of the data.

    Args:
        embeddings: number of the model's embeddings.

    Raises:
        TrainError: the tokenizer belongs to another model.
    """
    if largest_token >= embeddings:
        raise TrainError(
            f"the data have token {largest_token}, but the model has tokens 0 to {embeddings - 1}: "
            f"the tokenizer {tokenizer} belongs to another model"
        )


def has_tokenizer(folder: str) -> bool:
    """Return True if a model's folder has a tokenizer."""
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
    return any(any(Path(folder).glob(name)) for name in files)


def train_tokenizer(texts: Iterable[Piece], vocab_size: int) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer like GPT-2's, deterministically on any host.

    Args:
        texts: texts, of which the first 100 million characters are used.
        vocab_size: maximum number of tokens; short texts have fewer frequent pairs.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts, MAX_CHARACTERS), trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        unk_token=END,
        model_input_names=["input_ids", "attention_mask"],
    )


def _first(texts: Iterable[Piece], characters: int) -> Iterator[str]:
    for piece in texts:
        if characters <= 0:
            return
        characters -= len(piece.text)
        yield piece.text


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the number of the unknown token, or None if the token has another meaning too."""
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id)
    found = tokenizer.unk_token_id
    return None if found is None or found in others else int(found)


def router_coefficient(config: PretrainedConfig) -> float:
    """Return the factor of a mixture of experts' router loss; 0 for other models."""
    if not getattr(config, "output_router_logits", False):
        return 0.0
    return float(config.router_aux_loss_coef)
