"""The files that define how sentence-transformers turns token vectors into embeddings.

This module reads these files from a model's folder, and creates them for a new model. Standard
library only.
"""

import contextlib
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster_common.data.data_files import DataError
from ftcluster_common.given_files import GivenFileError, read_json

MODULES = "modules.json"
ABOUT = "config_sentence_transformers.json"
POOLING = "1_Pooling"
DENSE = "Dense"
LENGTH = "sentence_bert_config.json"
# flags by pooling mode; sentence-transformers before release 6 uses them instead of pooling_mode
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# names of the prompts that encode_query and encode_document use (since release 5)
QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")
KINDS = {"Transformer", "Pooling", DENSE, "Normalize"}
OF_EMBEDDERS = "Transformer, Pooling, Dense and Normalize"
MASK = "MultiVectorMask"  # the multi-vector module that selects the tokens to compare
MULTI_VECTOR_KINDS = {"Transformer", DENSE, MASK, "Normalize"}
PYLATE = "ColBERT"  # the class in PyLate's files, which list no modules for masks and lengths
PYLATE_KINDS = {"Transformer", DENSE}
PYLATE_DENSE = "pylate.models.Dense.Dense"
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
# activation functions of a Dense module: classes of torch.nn, named as in its config.json
ACTIVATIONS = (
    TANH, IDENTITY, "torch.nn.modules.activation.ReLU", "torch.nn.modules.activation.GELU",
    "torch.nn.modules.activation.SiLU", "torch.nn.modules.activation.Sigmoid",
)  # fmt: skip
SPLADE = "SpladePooling"  # the pooling module of a sparse encoder
SPARSE_KINDS = {"Transformer", "MLMTransformer", SPLADE}
SPLADE_CONFIG = {"pooling_strategy": "max", "activation_function": "relu"}
_CLASS = re.compile(r"sentence_transformers(?:\.[A-Za-z_]\w*)*\.([A-Za-z]+)", re.ASCII)
_PATH = re.compile(r"\w[\w-]*", re.ASCII)
HAS_SPARSE_ENCODER = "5.0.0"  # the first release with sparse encoders
READS_SIMILARITY = "3.0.0"  # the first release that reads similarity_fn_name
HAS_MULTI_VECTOR_ENCODER = "6.0.0"  # the first release with multi-vector encoders


@dataclass(frozen=True)
class Dense:
    """A linear layer with an activation function, which follows the pooling or maps each token.

    Attributes:
        in_features: number of input features.
        out_features: number of output features.
        bias: True if the layer has a bias.
        activation: activation function, an element of ACTIVATIONS.
    """

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = TANH

    @property
    def name(self) -> str:
        """The name of the activation function's class in torch.nn."""
        return self.activation.rpartition(".")[2]


@dataclass(frozen=True)
class TokenVectors:
    """The settings of a multi-vector encoder (ColBERT), which compares token vectors.

    Attributes:
        query_length: maximum number of tokens of a query; if `expands` is True, every query has
            exactly this length.
        document_length: maximum number of tokens of a text that is not a query.
        expands: True if queries are filled up with mask tokens, whose vectors are compared too.
        attends: True if the other tokens attend to these mask tokens.
        skipped: tokens in documents whose vectors are not compared, such as punctuation.
        prefixes: tokens that PyLate inserts in queries and documents, or "", if the model has
            PyLate's files; None if it has the files of sentence-transformers.
    """

    query_length: int
    document_length: int
    expands: bool = False
    attends: bool = False
    skipped: tuple[str, ...] = ()
    prefixes: tuple[str, str] | None = None


@dataclass(frozen=True)
class SentenceModules:
    """The modules that follow the transformer in a model of sentence-transformers.

    Attributes:
        pooling: pooling method: a key of FLAGS, or SPLADE for a sparse encoder.
        normalize: True if embeddings are scaled to length 1.
        prompts: prompts by name. sentence-transformers puts a prompt before its inputs on request.
        default_prompt: name of the prompt that is used unless another one is requested; "" if there
            is none.
        pools_prompt: True if pooling includes the tokens of the prompt.
        similarity: similarity function for searches with the model: dot or cosine.
        dense: linear layers that follow the pooling; in a multi-vector encoder, linear layers for
            the vector of each token.
        tokens: settings of a multi-vector encoder; None for an embedder.
    """

    pooling: str
    normalize: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pools_prompt: bool = True
    similarity: str = "cosine"
    dense: tuple[Dense, ...] = ()
    tokens: TokenVectors | None = None

    @property
    def prompt(self) -> str:
        """The prompt that `encode` puts before each text."""
        return self.prompts.get(self.default_prompt or "", "")

    @property
    def search_prompts(self) -> tuple[str, str]:
        """The prompts that `encode_query` and `encode_document` use, in this order."""
        texts = (self.prompts[name] for name in DOCUMENTS if name in self.prompts)
        return self.prompts.get(QUERY, self.prompt), next(texts, self.prompt)


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Raise DataError for files that sentence-transformers cannot have written."""
    try:
        yield
    except DataError:
        raise
    except GivenFileError as error:  # its message already names the file
        raise DataError(str(error)) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{folder / MODULES} is not as sentence-transformers writes it ({why})"
        ) from error


def read_modules(folder: Path, sparse: bool = False) -> SentenceModules | None:
    """Return the modules in a model's folder; None if sentence-transformers did not write it.

    Args:
        sparse: True to read the modules of a sparse encoder (SPLADE).

    Raises:
        DataError: a file cannot be read, or the model has unsupported modules.
    """
    if not (folder / MODULES).is_file():
        return None
    with _readable(folder):
        modules = read_json(folder / MODULES)
        kinds = {_kind(module["type"]): _below(folder, module["path"]) for module in modules}
        layers = dense_folders(folder)
        supported, needed = (SPARSE_KINDS, SPLADE) if sparse else (KINDS, "Pooling")
        unknown = sorted(kinds.keys() - supported)
        if unknown or needed not in kinds:
            what = (
                f"the module {ascii(unknown[0][:100])[1:-1]}" if unknown else f"no module {needed}"
            )
            used = "MLMTransformer and SpladePooling" if sparse else OF_EMBEDDERS
            raise DataError(f"{folder / MODULES} has {what}; only {used} are used")
        config = read_json(kinds[needed] / "config.json")
        pooling = _splade(config) if sparse else _pooling(config)
        about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
        return SentenceModules(
            pooling,
            "Normalize" in kinds,
            {name: str(text or "") for name, text in about.get("prompts", {}).items()},
            about.get("default_prompt_name"),
            config.get("include_prompt") is not False,
            "dot" if sparse or about.get("similarity_fn_name") == "dot" else "cosine",
            tuple(_dense(layer, "sentence_embedding") for layer in layers),
        )


def dense_folders(folder: Path) -> list[Path]:
    """Return the folders of a model's Dense modules, in the order in which they are applied.

    Raises:
        GivenFileError, ValueError, LookupError, TypeError, AttributeError: modules.json is damaged.
        DataError: a path leads out of the model's folder.
    """
    if not (folder / MODULES).is_file():
        return []
    modules = read_json(folder / MODULES)
    return [_below(folder, module["path"]) for module in modules if _kind(module["type"]) == DENSE]


def _dense(folder: Path, reads: str) -> Dense:
    """Return the settings of a Dense module.

    Args:
        reads: name that sentence-transformers uses for the module's input.
    """
    config = read_json(folder / "config.json")
    activation = config.get("activation_function", TANH)
    named = {config.get(name) or reads for name in ("module_input_name", "module_output_name")}
    problem = ""
    if activation not in ACTIVATIONS:
        problem = f"the activation {str(activation)[:100]!a}"
    elif config.get("use_residual"):
        problem = "a residual connection"
    elif named != {reads}:
        problem = f"another input than {reads}"
    elif not (folder / "model.safetensors").is_file():
        problem = "no file model.safetensors"
    if problem:
        raise DataError(f"the model's Dense module {folder.name} has {problem}, not supported")
    sizes = (config["in_features"], config["out_features"])
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"a Dense module has the sizes {sizes}")
    return Dense(*sizes, config.get("bias") is not False, activation)


def _dense_files(layers: Sequence[Dense], first: int, reads: str = "") -> dict[str, Any]:
    """Return the settings of Dense modules by file name; their weights are written elsewhere.

    Args:
        first: number of the first Dense module in modules.json.
        reads: name that sentence-transformers uses for the modules' input; "" means the default.
    """
    return {
        f"{number}_{DENSE}/config.json": {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": layer.bias,
            "activation_function": layer.activation,
            **({"module_input_name": reads, "module_output_name": reads} if reads else {}),
        }
        for number, layer in enumerate(layers, start=first)
    }


def read_multi_vector(folder: Path) -> SentenceModules | None:
    """Return the modules of a multi-vector encoder; None if the folder contains no such encoder.

    The folder may have been written by sentence-transformers or by PyLate.

    Raises:
        DataError: a file cannot be read, or the model has unsupported modules.
    """
    with _readable(folder):
        if not (folder / MODULES).is_file() or not (folder / ABOUT).is_file():
            return None
        about = read_json(folder / ABOUT)
        # PyLate before sentence-transformers 5 wrote no model_type
        by_pylate = about.get("model_type", PYLATE if "query_prefix" in about else "") == PYLATE
        if about.get("model_type") != "MultiVectorEncoder" and not by_pylate:
            return None
        modules = read_json(folder / MODULES)
        kinds = {_kind(module["type"]): _below(folder, module["path"]) for module in modules}
        layers = dense_folders(folder)
        supported = PYLATE_KINDS if by_pylate else MULTI_VECTOR_KINDS
        unknown = sorted(kinds.keys() - supported)
        missing = sorted(supported - kinds.keys())
        if unknown or missing:
            name = ascii((unknown or missing)[0][:100])[1:-1]
            what = f"the module {name}" if unknown else f"no module {name}"
            raise DataError(f"{folder / MODULES} has {what}, which is not supported")
        dense = tuple(_dense(layer, "token_embeddings") for layer in layers)
        if by_pylate:
            return _of_pylate(about, dense)
        mask = read_json(kinds[MASK] / "config.json")
        if mask.get("keep_only_token_ids") or mask.get("skiplist_tasks", ["document"]) != [
            "document"
        ]:
            raise DataError(f"the model's {MASK} has settings that are not supported")
        settings = read_json(folder / LENGTH)
        expansion = settings.get("query_expansion") or {}
        if expansion.get("strategy", "fixed") != "fixed" or expansion.get("token"):
            raise DataError("the model's query expansion has settings that are not supported")
        query = expansion.get("length") or settings.get("query_length") or 0
        vectors = TokenVectors(
            int(query),
            int(settings.get("document_length") or 0),
            bool(expansion),
            expansion.get("attend") is True,
            tuple(map(str, mask.get("skiplist_words") or ())),
        )
        return SentenceModules(
            MASK,
            True,
            {name: str(text or "") for name, text in about.get("prompts", {}).items()},
            about.get("default_prompt_name"),
            dense=dense,
            tokens=vectors,
        )


def _of_pylate(about: Mapping[str, Any], dense: tuple[Dense, ...]) -> SentenceModules:
    """Return the modules of a model that PyLate saved (`ColBERT.save` in models/colbert.py).

    PyLate inserts its prefixes as tokens. As in sentence-transformers 6, they begin the prompts
    here.
    """
    prompts = {name: str(text or "") for name, text in (about.get("prompts") or {}).items()}
    prefixes = (str(about.get("query_prefix") or ""), str(about.get("document_prefix") or ""))
    for name, prefix in zip((QUERY, DOCUMENTS[0]), prefixes, strict=True):
        prompts[name] = prefix + prompts.get(name, "").removeprefix(prefix)
    expands = about.get("do_query_expansion") is not False
    skipped = about.get("skiplist_words")
    tokens = TokenVectors(
        int(about.get("query_length") or 32),
        int(about.get("document_length") or 180),
        expands,
        expands and about.get("attend_to_expansion_tokens") is True,
        tuple(string.punctuation if skipped is None else map(str, skipped)),
        prefixes,
    )
    return SentenceModules(
        MASK, True, prompts, about.get("default_prompt_name"), dense=dense, tokens=tokens
    )


def kept_prefixes(prompts: Mapping[str, str], prefixes: Sequence[str]) -> tuple[str, str]:
    """Return PyLate's prefixes of queries and documents if the prompts begin with them, else "".

    >>> kept_prefixes({"query": "[Q] find: ", "document": "text: "}, ("[Q] ", "[D] "))
    ('[Q] ', '')
    """
    texts = (prompts.get(QUERY, ""), prompts.get(DOCUMENTS[0], ""))
    query, document = (
        prefix if text.startswith(prefix) else ""
        for text, prefix in zip(texts, prefixes, strict=True)
    )
    return query, document


def _pylate_files(
    modules: SentenceModules,
    tokens: TokenVectors,
    prefixes: Sequence[str],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Return the files of a multi-vector encoder as PyLate writes them.

    sentence-transformers 6 reads these files too. PyLate cannot read the files that
    sentence-transformers 6 writes, because they name modules of that release.
    """
    kinds = [("", "sentence_transformers.models.Transformer")]
    kinds += [(f"{number}_{DENSE}", PYLATE_DENSE) for number, _ in enumerate(modules.dense, 1)]
    prompts, kept = dict(modules.prompts), kept_prefixes(modules.prompts, prefixes)
    for name, prefix in zip((QUERY, DOCUMENTS[0]), kept, strict=True):
        prompts[name] = prompts.get(name, "").removeprefix(prefix)
    longest = max(tokens.query_length, tokens.document_length)
    layers = _dense_files(modules.dense, 1)
    return {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": kind}
            for number, (path, kind) in enumerate(kinds)
        ],
        LENGTH: {"max_seq_length": longest, "do_lower_case": False},
        ABOUT: {
            "__version__": {"sentence_transformers": HAS_SPARSE_ENCODER, **versions},
            "model_type": PYLATE,
            "prompts": {name: text for name, text in prompts.items() if text},
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": "MaxSim",
            "query_prefix": kept[0],
            "document_prefix": kept[1],
            "query_length": tokens.query_length,
            "document_length": tokens.document_length,
            "attend_to_expansion_tokens": tokens.attends,
            "skiplist_words": list(tokens.skipped),
            "do_query_expansion": tokens.expands,
        },
        **{name: {**layer, "use_residual": False} for name, layer in layers.items()},
    }


def _multi_vector_files(
    modules: SentenceModules, tokens: TokenVectors, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the files of a multi-vector encoder, for sentence-transformers 6 and later."""
    if tokens.prefixes is not None:
        return _pylate_files(modules, tokens, tokens.prefixes, versions)
    reads, package = "token_embeddings", "sentence_transformers.base.modules"
    layers = [(DENSE, f"{package}.dense.{DENSE}")] * len(modules.dense)
    kinds = [
        ("Transformer", f"{package}.transformer.Transformer"),
        *layers,
        (MASK, f"sentence_transformers.multi_vector_encoder.modules.{MASK}"),
        ("Normalize", f"{package}.normalize.Normalize"),
    ]
    paths = [f"{number}_{kind}" if number else "" for number, (kind, _) in enumerate(kinds)]
    lengths: dict[str, Any] = {"query_length": tokens.query_length}
    if tokens.expands:
        how = {"attend": tokens.attends, "token": None, "length": tokens.query_length}
        lengths = {"query_expansion": {"strategy": "fixed", **how}}
    return {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": kind}
            for number, (path, (_, kind)) in enumerate(zip(paths, kinds, strict=True))
        ],
        LENGTH: {"document_length": tokens.document_length, **lengths},
        ABOUT: {
            "__version__": {"sentence_transformers": HAS_MULTI_VECTOR_ENCODER, **versions},
            "model_type": "MultiVectorEncoder",
            "prompts": dict(modules.prompts),
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": "maxsim",
        },
        **_dense_files(modules.dense, 1, reads),
        f"{paths[-2]}/config.json": {
            "skiplist_words": list(tokens.skipped),
            "skiplist_tasks": ["document"],
            "keep_only_token_ids": None,
        },
        f"{paths[-1]}/config.json": {"module_input_name": reads, "module_output_name": reads},
    }


def _kind(class_name: str) -> str:
    """Return the kind of module that a class name means; unknown names are returned unchanged.

    An unknown class may be defined in a file in the folder, and sentence-transformers 5 would
    execute this file.

    >>> _kind("sentence_transformers.models.Pooling"), _kind("evil.Pooling")
    ('Pooling', 'evil.Pooling')
    """
    if class_name == PYLATE_DENSE:
        return DENSE
    match = _CLASS.fullmatch(class_name)
    return match[1] if match else class_name


def _below(folder: Path, path: str) -> Path:
    """Return the folder of a module, given by its path in the model's folder.

    Raises:
        DataError: the path leads out of the model's folder.
    """
    if path and not _PATH.fullmatch(path):
        raise DataError(f"{folder / MODULES} has the path {path[:100]!a}, which is no folder in it")
    return folder / path


def _splade(config: Mapping[str, Any]) -> str:
    for name, value in SPLADE_CONFIG.items():
        if config.get(name, value) != value:
            raise DataError(
                f"the model's {SPLADE} has {name}={str(config[name])[:100]!a}, which is not "
                f"supported; {value} is"
            )
    return SPLADE


def _pooling(config: Mapping[str, Any]) -> str:
    chosen = config.get("pooling_mode")
    if chosen is None:
        chosen = [mode for mode, flag in FLAGS.items() if config.get(flag)] or "mean"
    modes = [chosen] if isinstance(chosen, str) else list(chosen)
    if len(modes) != 1 or modes[0] not in FLAGS:
        raise DataError(
            f"the model's pooling is {' + '.join(modes)}, which is not supported; choose one of "
            f"pooling={', '.join(FLAGS)}"
        )
    return str(modes[0])


def module_files(
    modules: SentenceModules, width: int, length: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the contents of the files by name, for sentence-transformers 3 and later.

    Args:
        width: number of dimensions of an embedding.
        length: maximum number of tokens of a text.
        versions: versions of transformers and pytorch.
    """
    if modules.pooling == SPLADE:
        return _sparse_files(modules, width, length, versions)
    if modules.tokens:
        return _multi_vector_files(modules, modules.tokens, versions)
    layers = [DENSE] * len(modules.dense)
    kinds = ["Transformer", "Pooling", *layers, *(["Normalize"] if modules.normalize else [])]
    return {
        **_dense_files(modules.dense, 2),
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
        LENGTH: {"max_seq_length": length, "do_lower_case": False},
        ABOUT: {
            "__version__": {"sentence_transformers": READS_SIMILARITY, **versions},
            "model_type": "SentenceTransformer",
            "prompts": dict(modules.prompts),
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": modules.similarity,
        },
        f"{POOLING}/config.json": {
            "word_embedding_dimension": modules.dense[0].in_features if modules.dense else width,
            **{flag: mode == modules.pooling for mode, flag in FLAGS.items()},
            "include_prompt": modules.pools_prompt,
        },
    }


def _sparse_files(
    modules: SentenceModules, width: int, length: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the files of a sparse encoder, for sentence-transformers 5 and later."""
    kinds = {"MLMTransformer": "", SPLADE: f"1_{SPLADE}"}
    return {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.sparse_encoder.models.{kind}",
            }
            for number, (kind, path) in enumerate(kinds.items())
        ],
        LENGTH: {"max_seq_length": length, "do_lower_case": False},
        ABOUT: {
            "__version__": {"sentence_transformers": HAS_SPARSE_ENCODER, **versions},
            "model_type": "SparseEncoder",
            "prompts": dict(modules.prompts),
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": "dot",
        },
        f"1_{SPLADE}/config.json": {**SPLADE_CONFIG, "word_embedding_dimension": width},
    }
