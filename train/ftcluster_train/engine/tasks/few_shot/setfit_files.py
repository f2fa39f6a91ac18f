"""The files that store a classifier's head, for ftcluster and for SetFit.

ftcluster reads only `head.safetensors`, which contains the weights. On request, SetFit's files are
written too: `config_setfit.json` and `model_head.pkl`. The latter is a pickled LogisticRegression
of scikit-learn, which SetFit unpickles. This module writes the pickle without scikit-learn, and
never reads pickles.
"""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ftcluster_train.engine.tasks.few_shot.logistic_head import LogisticHead
from ftcluster_train.errors import TrainError

WEIGHTS, SETFIT, PICKLE = "head.safetensors", "config_setfit.json", "model_head.pkl"
PROTOCOL = 2  # pickle protocol of the opcodes below
NEW_OBJECT = b"\x80\x02csklearn.linear_model._logistic\nLogisticRegression\n)\x81"
SET_STATE = b"b."
# scikit-learn release named in the pickle; other releases warn when they load it
SKLEARN = "1.9.1"


def write_head(head: LogisticHead, folder: Path) -> None:
    """Write a head into a model's folder."""
    save_file({"weight": head.weight, "bias": head.bias}, folder / WEIGHTS)


def write_setfit_head(head: LogisticHead, names: Sequence[str], folder: Path) -> None:
    """Write a head into a model's folder, in the format of SetFit.

    Args:
        names: class names, in the order of the class numbers.
    """
    # if needed, a sentence-transformers module normalizes the embeddings, so SetFit must not
    config = {"normalize_embeddings": False, "labels": [*names]}
    (folder / SETFIT).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / PICKLE).write_bytes(_pickled(head, len(names)))


def read_head(folder: Path) -> LogisticHead:
    """Read the head from a model's folder.

    Raises:
        TrainError: the folder has no head, or the head is damaged.
    """
    try:
        tensors = load_file(folder / WEIGHTS)
        return LogisticHead(tensors["weight"].double(), tensors["bias"].double())
    except (OSError, SafetensorError, KeyError) as error:
        raise TrainError(
            f"{folder / WEIGHTS}, the classifier's head, cannot be read ({error})",
            "use the folder of a few-shot training",
        ) from error


def _pickled(head: LogisticHead, classes: int) -> bytes:
    """Return the pickle of a fitted LogisticRegression, for any recent scikit-learn."""
    state = {
        "C": 1.0, "penalty": "l2", "dual": False, "tol": 1e-4, "fit_intercept": True,
        "intercept_scaling": 1, "class_weight": None, "random_state": None, "solver": "lbfgs",
        "max_iter": 100, "multi_class": "auto", "verbose": 0, "warm_start": False, "n_jobs": None,
        "l1_ratio": None, "n_features_in_": int(head.weight.shape[1]),
        "classes_": np.arange(classes), "coef_": _array(head.weight),
        "intercept_": _array(head.bias), "n_iter_": np.array([1], dtype=np.int32),
        "_sklearn_version": SKLEARN,
    }  # fmt: skip
    pickled = pickle.dumps(state, protocol=PROTOCOL)
    return NEW_OBJECT + pickled[len(b"\x80\x02") : -len(pickle.STOP)] + SET_STATE


def _array(tensor: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    array: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = tensor.numpy()
    return array
