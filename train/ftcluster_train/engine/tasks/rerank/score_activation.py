"""The activation function for a cross-encoder's scores, read from the model's files.

sentence-transformers stores the import path of a torch class. Releases from 6.0 write the path to a
separate file. Releases 4 and 5 write it to config.json, as `activation_fn` in the field
`sentence_transformers`. Older releases use the field `sbert_ce_default_activation_function` of
config.json. If no path is stored, CrossEncoder applies the sigmoid to a single output. Only known
paths are accepted, because downloaded files must not choose which code is imported.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from ftcluster_common.given_files import read_json
from ftcluster_train.errors import TrainError

Activation = Callable[[torch.Tensor], torch.Tensor]
FILE, KEY = "config_sentence_transformers.json", "activation_fn"
FIELD, OLD_FIELD = "sentence_transformers", "sbert_ce_default_activation_function"
ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": lambda logits: logits,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}
PLACES = ("torch.nn", "torch.nn.modules.linear", "torch.nn.modules.activation")


def activation_path(config: PretrainedConfig | None, folder: Path | None) -> str | None:
    """Return the import path of the activation from a model's files; None if there is none.

    Args:
        folder: folder of the model. As in sentence-transformers 6, the separate file is read only
            if the folder contains a modules.json.
    """
    file = folder / FILE if folder else None
    if file and file.exists() and file.with_name("modules.json").exists():
        document = read_json(file)
        if isinstance(document, Mapping) and document.get(KEY) is not None:
            return str(document[KEY])
    fields: Any = getattr(config, FIELD, None)
    path = fields.get(KEY) if isinstance(fields, Mapping) else None
    path = getattr(config, OLD_FIELD, None) if path is None else path
    return None if path is None else str(path)


def score_activation(path: str | None, name: str) -> Activation:
    """Return the activation with the import path `path`; None means the sigmoid.

    Args:
        name: name of the model, for error messages.

    Raises:
        TrainError: the activation is unknown.
    """
    if path is None:
        return ACTIVATIONS["Sigmoid"]
    place, _, kind = path.rpartition(".")
    if place not in PLACES or kind not in ACTIVATIONS:
        raise TrainError(
            f"{name} has the unknown activation {path} for its scores, in {FILE} or config.json; "
            f"known activations: {', '.join(ACTIVATIONS)} of torch.nn",
            "use another model, or put a known activation into that file",
        )
    return ACTIVATIONS[kind]


def name_activation(config: PretrainedConfig, path: str) -> None:
    """Write the import path of an activation into a model's configuration."""
    fields = getattr(config, FIELD, None)
    config.update({FIELD: {**(fields if isinstance(fields, dict) else {}), KEY: path}})
