"""Load the configuration, tokenizer and weights of a model, or train a tokenizer."""

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

# models whose position ids start after the id of the padding token (create_position_ids)
POSITIONS_BEHIND_PADDING = frozenset(
    {"camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)  # fmt: skip
DECODER_START = "decoder_start_token_id"  # missing in some configurations until it is set
END = "<|endoftext|>"  # GPT-2's end-of-text token
# maximum length of the text that a tokenizer is trained on; more text hardly changes the tokenizer
MAX_CHARACTERS = 100_000_000


def call_model(model: "PreTrainedModel", inputs: Mapping[str, Any]) -> Any:
    """Call a model with the inputs that it accepts.

    This drops inputs such as token types: BERT's tokenizer creates them even for DistilBERT, but
    DistilBERT in transformers 4 rejects them.
    """
    accepted = _parameter_names(type(model).forward)
    return model(**{n: value for n, value in inputs.items() if accepted is None or n in accepted})


@cache
def _parameter_names(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return a function's parameter names; None if the function accepts any keyword argument."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a folder.

    Raises:
        TrainError: the tokenizer cannot be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # from_pretrained may raise any exception of its many readers
        raise TrainError(f"the tokenizer of {folder} cannot be loaded: {error}") from error


def load_config(
    recipe: Recipe, model: str, tokenizer: PreTrainedTokenizerBase, **settings: Any
) -> PretrainedConfig:
    """Return the model's configuration with the recipe's overrides.

    When training from scratch, the tokenizer determines the vocabulary size and special tokens.

    Args:
        model: folder of the model, or `config:TYPE`.
        settings: further configuration fields; the recipe's overrides take precedence.

    Raises:
        TrainError: the configuration cannot be loaded, or lacks a field that the recipe overrides.
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
    # pad_token_id is always set: a decoder's classifier reads the last token before the padding
    padding = getattr(plain, "pad_token_id", None)
    behind = plain.model_type in POSITIONS_BEHIND_PADDING and not recipe.from_scratch
    if behind and padding != tokenizer.pad_token_id:
        raise TrainError(
            f"the tokenizer pads with token {tokenizer.pad_token_id}, but {recipe.model} needs its "
            f"padding token {padding} to number the positions",
            "use the model's own tokenizer: tokenizer=DIR",
        )
    settings["pad_token_id"] = tokenizer.pad_token_id
    return _config(model, **{**settings, **recipe.config_overrides})


def plain_config(model: str) -> PretrainedConfig:
    """Return the configuration in a model's folder, without overrides.

    Raises:
        TrainError: the configuration cannot be loaded.
    """
    return _config(model)


def _decoder_start(plain: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of a decoder's first token: end of text for BART-like models, else padding."""
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
    """Return the maximum number of tokens of an input; None if there is no limit.

    If both configuration and tokenizer have a limit, the lower limit applies.
    """
    positions = positions_of(config)
    limits = [] if positions is None else [positions]
    if tokenizer.model_max_length < 1e9:  # transformers uses 1e30 for tokenizers without a limit
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)


def positions_of(config: PretrainedConfig) -> int | None:
    """Return for how many tokens a model has positions; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    behind = config.model_type in POSITIONS_BEHIND_PADDING
    return positions - (config.pad_token_id or 0) - 1 if behind else positions


def check_quantization(recipe: Recipe, config: PretrainedConfig) -> None:
    """Check that a model's weights can be loaded with the recipe's quantization.

    Models that were saved in quantized form are rejected, because their weights cannot be trained.

    Raises:
        TrainError: bitsandbytes is needed but not installed, or the weights are already quantized.
    """
    if recipe.load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise TrainError(
            f"load_in_4bit needs the package bitsandbytes, which {socket.gethostname()} lacks",
            "set the cluster up again: ftcluster setup",
        )
    if saved := getattr(config, "quantization_config", None):
        kind = saved.get("quant_method") if isinstance(saved, dict) else type(saved).__name__
        raise TrainError(
            f"the weights of {recipe.model} are already quantized ({kind})",
            "use the model before quantization"
            + "; adapters can be trained with lora_r=16 load_in_4bit=true"
            * recipe.spec.can_load_in_4bit,
        )


def load_model(
    model_class: Any, recipe: Recipe, model: str, config: PretrainedConfig,
    require_trained_head: bool = False, dtype: torch.dtype = torch.float32, in_4bit: bool = False,
    any_head: bool = False,
) -> "PreTrainedModel":  # fmt: skip
    """Load a model with its pretrained weights or, for training from scratch, with random weights.

    Afterwards, `new_weights` returns the names of the weights that got random values.

    Args:
        model: folder of the model, or `config:TYPE`.
        require_trained_head: True to reject a checkpoint that lacks weights; False to initialize a
            missing head at random.
        dtype: dtype of the weights; norms and heads are always in fp32.
        in_4bit: True to quantize linear layers to NF4 while they are loaded.
        any_head: True to replace weights of a wrong shape with random weights, see
            `mismatched_weights`.

    Raises:
        TrainError: the model cannot be loaded or lacks weights, or transformers has no class for
            this model and task.
    """
    keyword: dict[str, Any] = {dtype_keyword(transformers.__version__): dtype}
    if in_4bit:
        # hide bitsandbytes' warning at import about a missing inference kernel
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
    """Return the names of a model's random weights, which are missing in its checkpoint."""
    return {*getattr(model, "new_weights", ())}


def mismatched_weights(model: "PreTrainedModel") -> dict[str, tuple[list[int], list[int]]]:
    """Return the weights that got random values because their shape in the checkpoint was wrong.

    Returns:
        The shape in the checkpoint and the shape in the model, by weight name.
    """
    return {**getattr(model, "mismatched_weights", {})}


def new_weights_notice(model: "PreTrainedModel", has_all: bool) -> str:
    """Return a notice about weights that are unexpectedly missing in a checkpoint, or "".

    Args:
        has_all: True if the checkpoint should contain the head, as for language models. False for
            classifiers, whose head and pooler may be new.
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
        f"RANDOM at first: the checkpoint of {model.name_or_path} lacks the weights {first}"
        + (f" and {len(others)} more" if others else "")
        + f", {sum(new.values()) / model.num_parameters():.1%} of the model. Use a checkpoint "
        "that has these weights, or train for longer, because they start at random"
    )


def dtype_keyword(version: str) -> str:
    """Return the keyword argument of `from_pretrained` that sets the dtype of the weights.

    The dtype must be passed, because its default is fp32 in transformers 4, but the checkpoint's
    dtype in transformers 5. transformers 4.56 renamed the keyword (pull request 39782).
    """
    major, minor = (int(number) for number in version.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def _with_plain_layers(model: "PreTrainedModel") -> None:
    """Replace bitsandbytes' linear layers with torch's layers, see `ftcluster_kernels.nf4`."""
    for name, layer in list(model.named_modules()):
        # skip GPT-2's layers: their weights are transposed, and they get no adapters in NF4
        if not (hasattr(layer, "source_cls") and layer.source_cls is nn.Linear):
            continue
        with torch.device("meta"):
            plain = nn.Linear(layer.in_features, layer.out_features, bias=False)
        plain.weight = in_nf4(layer.weight.data, layer.weight.quant_state)
        plain.bias = layer.bias
        model.set_submodule(name, plain)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            # copy, because a view of the mapped file would keep the pages of all weights in memory
            parameter.data = parameter.data.clone()
    model.hf_quantizer.remove_quantization_config(model)  # merged models must not have it


def check_tokens(embeddings: int, largest_token: int, tokenizer: str) -> None:
    """Check that a model has an embedding for each token id in the data.

    Args:
        embeddings: number of token embeddings of the model.
        largest_token: largest token id in the data.
        tokenizer: name of the tokenizer, for the message.

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
    """Train a byte-level BPE tokenizer like GPT-2's; the result is the same on every host.

    Args:
        texts: training texts; only the first MAX_CHARACTERS characters are used.
        vocab_size: maximum number of tokens in the vocabulary; it is smaller if there is little
            text.
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
    """Return the id of the unknown token; None if there is none or it has another meaning too."""
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id)
    unknown = tokenizer.unk_token_id
    return None if unknown is None or unknown in others else int(unknown)


def router_coefficient(config: PretrainedConfig) -> float:
    """Return the weight of the router loss of a mixture-of-experts model; 0 for other models."""
    if not getattr(config, "output_router_logits", False):
        return 0.0
    return float(config.router_aux_loss_coef)
