"""New tokens: add them to the tokenizer and the embeddings, and train their rows beside LoRA.

New rows start at the mean of the old rows. transformers' `resize_token_embeddings` instead draws
them from a normal distribution around this mean, whose standard deviation is 3e-5 times that of the
old rows. The plain mean needs no random numbers, so all ranks and a resumed run get equal rows.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ftcluster_common.models.adapter_config import TOKEN_ROWS, ids_of
from ftcluster_common.recipe import Recipe
from ftcluster_kernels.token_rows import TokenRows
from ftcluster_train.engine.models import load_tokenizer
from ftcluster_train.errors import TrainError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHOWN = 8  # maximum number of tokens in a message
MODULE, PARAMETER = TOKEN_ROWS.split(".")  # peft's names in a layer with trained rows


def extend_tokenizer(recipe: Recipe, folder: str, target: Path) -> tuple[str, list[int], list[str]]:
    """Add the recipe's new tokens to a tokenizer, and save the result.

    Args:
        folder: folder of the tokenizer.
        target: folder for the tokenizer with the new tokens.

    Returns:
        The folder of the tokenizer to use, the ids of the tokens that are new in the tokenizer,
        and notices for the user.

    Raises:
        TrainError: the tokenizer does not support one of the tokens.
    """
    if not recipe.listed_tokens:
        return folder, [], []
    tokenizer = load_tokenizer(folder)
    before = set(tokenizer.get_vocab().values())
    present = [token for token in recipe.listed_tokens if _is_read(tokenizer, token, token)]
    for special, tokens in ((False, recipe.new_tokens), (True, recipe.new_special_tokens)):
        missing = [token for token in tokens if token not in present]
        if missing:
            tokenizer.add_tokens(missing, special_tokens=special)
    ids = token_ids(tokenizer, recipe.listed_tokens)
    for token in recipe.listed_tokens:
        if token not in present and not _is_read(tokenizer, token, f"a{token}a"):
            raise TrainError(
                f"the tokenizer of {recipe.tokenizer or recipe.model} does not read {token!r} as "
                "one token, even after it was added",
                "change this token in new_tokens or new_special_tokens",
            )
    new = sorted({*ids} - before)
    notices = []
    if new:
        count = "1 new token was" if len(new) == 1 else f"{len(new)} new tokens were"
        ids_of_new = f"id {new[0]}" if len(new) == 1 else f"ids {new[0]} to {new[-1]}"
        notices.append(f"{count} added to the vocabulary: {ids_of_new}")
    if present:
        verb = "is" if len(present) == 1 else "are"
        notices.append(f"{_shown(present)} {verb} already in the vocabulary, so not added again")
    reused = [t for t, number in zip(recipe.listed_tokens, ids, strict=True) if number in before]
    if matched := [token for token in reused if token not in present]:
        notices.append(
            f"{_shown(matched)}: the vocabulary had this text, but texts were not split there; now "
            "they are, and the token keeps its id"
        )
    if new or matched:
        tokenizer.save_pretrained(target)
        folder = str(target)
    return folder, new, notices


def _shown(tokens: Sequence[str]) -> str:
    more = f" and {len(tokens) - SHOWN} more" if len(tokens) > SHOWN else ""
    return ", ".join(tokens[:SHOWN]) + more


def _is_read(tokenizer: PreTrainedTokenizerBase, token: str, text: str) -> bool:
    """Return True if the tokenizer knows a token and finds it in a text."""
    number = tokenizer.get_vocab().get(token)
    return number is not None and number in tokenizer(text, add_special_tokens=False)["input_ids"]


def token_ids(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> list[int]:
    """Return the ids of tokens that the tokenizer has.

    Raises:
        TrainError: the tokenizer lacks a token.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    try:
        return [vocabulary[token] for token in tokens]
    except KeyError as error:
        raise TrainError(f"the tokenizer cannot have the token {error.args[0]!r}") from None


def check_new_tokens(
    model_class: Any, config: PretrainedConfig, ids: Sequence[int], recipe: Recipe
) -> None:
    """Check that a model can get rows for these token ids, without loading its weights.

    Args:
        model_class: transformers' AutoModelFor... class.

    Raises:
        TrainError: the model cannot get rows for these ids.
    """
    try:
        with torch.device("meta"):
            model = model_class.from_config(copy.deepcopy(config))
        model.tie_weights()
    except Exception:  # some models cannot be built without weights; the ranks check them later
        return
    count = len(model.get_input_embeddings().weight)
    with torch.device("meta"):
        extend_embeddings(model, ids)
    if recipe.adapters is None:
        return
    _layers_with_rows(model)
    if recipe.adapters.merge_adapters:
        return
    problem = ""
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        problem = (
            f"the output layer of this {config.model_type} model has a bias, which peft leaves out "
            "when it loads adapters with trained rows of that layer"
        )
    elif max(ids) >= count and recipe.spec.is_sentence_encoder:
        problem = (
            "sentence-transformers cannot load adapters with new tokens, because it does not add "
            "rows to their base model"
        )
    if problem:
        raise TrainError(
            problem, "save the whole model: merge_adapters=true; or train all weights: lora_r=null"
        )


@torch.no_grad()  # type: ignore[untyped-decorator]
def extend_embeddings(
    model: "PreTrainedModel", ids: Sequence[int], new: Sequence[int] = ()
) -> None:
    """Add rows for token ids to a model's embeddings; new rows are the mean of the old rows.

    A model may have more rows than its tokenizer has tokens. When such an extra row gets a token,
    it is also set to the mean, because it was never trained.

    Args:
        ids: token ids that need rows.
        new: ids that the tokenizer did not have before.

    Raises:
        TrainError: the embeddings of the model cannot be resized.
    """
    count = len(model.get_input_embeddings().weight)
    needed = max(ids, default=-1) + 1
    if needed > count:
        try:
            # mean_resizing would use random numbers
            model.resize_token_embeddings(needed, mean_resizing=False)
        except Exception as error:  # each model may have its own resizing code
            raise TrainError(
                f"models of type {model.config.model_type} cannot have new tokens: "
                f"{first_line(error)}",
                "remove new_tokens and new_special_tokens",
            ) from error
    rows = sorted({*new, *range(count, needed)})
    if not rows:
        return
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    for weight in {layer.weight: None for layer in layers if layer is not None}:
        old = weight[: min(count, rows[0])]
        weight[rows] = old.mean(0, dtype=torch.float32).to(weight.dtype)
    bias = getattr(layers[1], "bias", None)
    if bias is not None and needed > count:
        bias[count:] = bias[:count].mean()


def _layers_with_rows(model: "PreTrainedModel") -> dict[str, nn.Module]:
    """Return the layers whose rows are trained, by name: the embeddings and an untied output layer.

    Raises:
        TrainError: rows of these layers cannot be trained beside frozen rows.
    """
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    layers = [embeddings]
    if output is not None and output.weight is not embeddings.weight:
        layers.append(output)
    plain = isinstance(embeddings, nn.Embedding) and embeddings.max_norm is None
    if not plain or not isinstance(output, nn.Linear | None):
        layer = output if plain else embeddings
        raise TrainError(
            f"the {type(layer).__name__} of a {model.config.model_type} model cannot train the "
            "rows of new tokens while its other rows are frozen",
            "train all weights: lora_r=null",
        )
    return {name: module for name, module in model.named_modules() if module in layers}


def add_token_rows(
    model: "PreTrainedModel", ids: Iterable[int], saved: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Train the rows of token ids in a model whose other rows are frozen.

    Args:
        model: model with adapters.
        ids: token ids whose rows are trained in the embeddings and in the output layer.
        saved: further token ids, by layer name, from the adapters that training continues.

    Raises:
        TrainError: rows of this model cannot be trained beside frozen rows.
    """
    if not ids and not saved:
        return
    for name, layer in _layers_with_rows(model).items():
        indices = torch.tensor(sorted({*ids, *(saved or {}).get(name, ())}), dtype=torch.int64)
        if not len(indices):
            continue
        values = nn.Parameter(layer.weight.data[indices].float())
        inner = nn.Module()
        inner.register_parameter(PARAMETER, values)
        layer.register_module(MODULE, inner)
        layer.token_rows = TokenRows(indices, values)


def rows_by_layer(model: "PreTrainedModel") -> dict[str, TokenRows]:
    """Return the trained rows of a model's layers, by the layers' names."""
    return {
        name: layer.token_rows
        for name, layer in model.named_modules()
        if isinstance(vars(layer).get("token_rows"), TokenRows)
    }


def saved_indices(model: "PreTrainedModel") -> list[int] | dict[str, list[int]] | None:
    """Return the value of peft's `trainable_token_indices` for a model."""
    ids: dict[str, list[int]] = {
        name: rows.ids.tolist() for name, rows in rows_by_layer(model).items()
    }
    if len(ids) == 1 and hasattr(model.get_input_embeddings(), "token_rows"):
        # peft itself handles an output layer that is tied to the embeddings
        return next(iter(ids.values()))
    return ids or None


def merge_token_rows(model: "PreTrainedModel") -> None:
    """Write the trained rows into the weights of their layers, and remove them."""
    for name, rows in rows_by_layer(model).items():
        layer = model.get_submodule(name)
        rows.write_into(layer.weight)
        delattr(layer, MODULE)
        del layer.token_rows


@torch.no_grad()  # type: ignore[untyped-decorator]
def use_token_rows(
    model: "PreTrainedModel",
    ids: Mapping[str, Sequence[int]],
    tensors: Mapping[str, torch.Tensor],
) -> list[str]:
    """Write saved rows into the weights of a model, and add rows to the model if needed.

    Args:
        ids: token ids of the rows, by layer name, see `adapter_config.ids_by_layer`.
        tensors: saved rows, by layer name.

    Returns:
        A list of problems.
    """
    extend_embeddings(model, [number for of_layer in ids.values() for number in of_layer])
    layers, problems = dict(model.named_modules()), []
    seen: set[torch.Tensor] = set()
    for name, rows in tensors.items():
        of_layer = ids_of(ids, name)
        weight = getattr(layers.get(name), "weight", None)
        if weight is not None and weight in seen:
            problems.append(f"{name} has other trained rows than a layer with the same weight")
        elif weight is None or (len(of_layer), weight.shape[1]) != tuple(rows.shape):
            problems.append(f"the trained rows of {name} do not fit the model and the token ids")
        else:
            weight.data[torch.tensor(of_layer)] = rows.to(weight.dtype)
            seen.add(weight)
    return problems
