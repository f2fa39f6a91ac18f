"""Prepare the model and the data of a run on this host before the ranks start.

    python -m ftcluster_train.engine.prepare RUN_DIR [--hub-token | --job FILE]
    python -m ftcluster_train.engine.prepare --report JOB [--hub-token]

The program converts the data to token samples, and writes RUN_DIR/inputs.json, which contains the
paths for the ranks. It reuses the samples of an earlier run with the same data and settings. If it
finds an error that a user can fix, it prints the error and exits with 1.

With --hub-token the program reads a token for the Hugging Face Hub from stdin, and keeps it only in
memory. With --job it creates RUN_DIR and copies FILE there as job.json. Several hosts may do this
at the same time in a shared folder. With --report it only prints the report on the data as one line
of JSON; JOB is the text of a job.json. The token samples stay in the cache, so that the later
training run can use them.
"""

import gc
import sys

from ftcluster_train.engine.data.inputs_cache import keep_inputs, reuse_inputs
from ftcluster_train.engine.data.run_inputs import Inputs
from ftcluster_train.engine.model_lists import read_models_once

if __name__ == "__main__":
    if reuse_inputs(sys.argv[1:]):  # saves the seconds for importing torch
        sys.exit(0)
    gc.disable()  # garbage collection would take a quarter of the imports' CPU time
    read_models_once()

import contextlib
import errno
import fcntl
import itertools
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoModelForSequenceClassification, PretrainedConfig
from transformers.utils import logging as transformers_logging

from ftcluster_common.data import data_files
from ftcluster_common.data.data_files import TRAIN, DataError
from ftcluster_common.data.data_sets import split_name
from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_common.models.adapter_config import CONFIG as ADAPTERS
from ftcluster_common.models.adapter_config import has_only_adapters, ids_by_layer
from ftcluster_common.models.row_hashes import RowHashes, hash_of, read_rows
from ftcluster_common.models.sentence_modules import MODULES
from ftcluster_common.protocol.job import EVALUATE, GENERATE, Job
from ftcluster_common.recipe import BY_TYPE, GENERATED, Recipe
from ftcluster_common.user_code import declared_metrics
from ftcluster_train.engine.adapters import (
    check_targets,
    check_whole,
    trained_config,
)
from ftcluster_train.engine.class_head import head_of
from ftcluster_train.engine.continued import check_continued
from ftcluster_train.engine.data.download import commit_of, fetch_base, fetch_model
from ftcluster_train.engine.data.run_code import code_failure, open_job
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.data.sets import PartOfRows
from ftcluster_train.engine.data.sources import dataset_version, load_texts
from ftcluster_train.engine.data.token_cache import cached_tokens, token_key
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.data_report import describe
from ftcluster_train.engine.models import (
    check_quantization,
    check_tokens,
    has_tokenizer,
    load_tokenizer,
    longest_input,
    train_tokenizer,
)
from ftcluster_train.engine.new_tokens import check_new_tokens, extend_tokenizer, token_ids
from ftcluster_train.engine.tasks.base import TEST_ROWS, VALIDATION_ROWS, Task
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.errors import TrainError
from ftcluster_train.io.fsync import ACCOUNT_ONLY, write_atomically
from ftcluster_train.io.stack import hold_stack, own_stack

EXTENDED = "extended-tokenizer"  # folder of a run for the tokenizer with the recipe's new tokens
VOCABULARY = 50257  # GPT-2's size
SHOWN_CHARACTERS = 200
COMMON = Path(data_files.__file__).parents[1]
READERS = (COMMON / "data", COMMON / "tasks")  # folders with the code that reads rows
REPORT = "report.json"  # file with the report on the data, in the folder of the samples


def prepare(job: Job, weights: bool = True) -> Inputs:
    """Download or generate the inputs that the recipe names, and tokenise them.

    Args:
        weights: True to download the model's weights too.

    Raises:
        TrainError, DataError: the model or the data cannot be loaded, or do not fit the task.
    """
    recipe, models = job.recipe, job.prefix / "models"
    model, adapters = recipe.model, ""
    if not model.startswith(BY_TYPE):
        model = fetch_model(model, models, weights=weights and not recipe.from_scratch)
        if job.purpose == "train" and not recipe.adapter_base:
            check_whole(model)
        elif job.purpose != GENERATE and has_only_adapters(Path(model)):
            adapters = model
            model = fetch_base(adapters, models, weights, recipe.adapter_base)
            check_whole(model)
        elif recipe.adapter_base:
            what = f"adapter_base is the base model of adapters, but {model} has a whole model"
            raise TrainError(what, "remove adapter_base")
    own = adapters or model  # folder of all files except weights
    beside = own if has_tokenizer(own) else model
    folder, notices = _tokenizer(recipe, beside, models, job.run_dir)
    folder, new_ids, more = extend_tokenizer(recipe, folder, job.run_dir / EXTENDED)
    notices += more
    tokenizer = load_tokenizer(folder)
    if job.purpose == GENERATE:
        return Inputs(model, folder, "", notices, {})
    config = trained_config(recipe, model, tokenizer, adapters)
    check_quantization(recipe, config)
    trained = None if job.purpose == "train" else config
    task = make_task(recipe, tokenizer, job.purpose, trained)
    task.own_metric_names = declared_metrics(job.code.metrics)
    if not model.startswith(BY_TYPE):
        # adapters from other programs lack the files of a sentence model
        described = own if (Path(own) / MODULES).is_file() else model
        task.inspect_model(Path(described))
    teacher = ""
    if recipe.teacher:
        teacher = fetch_model(recipe.teacher, models, weights=weights, field="teacher")
        check_whole(teacher)
        task.inspect_teacher(Path(teacher))
    longest = longest_input(config, tokenizer)
    is_new = model.startswith(BY_TYPE) or recipe.from_scratch
    earlier = RowHashes() if is_new else read_rows(Path(own))

    def encode(samples: Path) -> list[str]:
        notices = [*task.encode(recipe.data, longest, samples), *task.notices()]
        _check_ends(task, config, samples)
        report = describe(task, samples, earlier)
        (samples / REPORT).write_text(json.dumps(report), encoding="utf-8")
        for file, parts in ((VALIDATION_ROWS, task.drawn), (TEST_ROWS, task.drawn_tests)):
            if parts:
                _write_places(samples / file, recipe, parts)
        if job.purpose == EVALUATE:
            notices += [
                f"{data_set['set']}: THE MODEL WAS TRAINED ON {data_set['duplicates']} OF "
                f"{data_set['documents']} samples, so the metrics are better than on new data"
                for data_set in report["sets"]
                if data_set["duplicates"]
            ]
        return notices

    version = [_data_version(part) for part in recipe.by_set()]
    settings = _token_settings(job, task, trained, longest, version, earlier)
    sources = [data_set.path for data_set in recipe.data_sets]
    paths = [Path(name) for name in (folder, *sources, teacher) if name and Path(name).exists()]
    # also hash the code, because another version may read rows differently or write other columns
    key = token_key(settings, [Path(__file__).parent, *READERS, *paths])
    samples, more = cached_tokens(job.prefix / "cache" / "tokens", key, encode)
    listed = token_ids(tokenizer, recipe.listed_tokens)
    if adapters:
        listed += _saved_token_ids(Path(adapters))
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    if isinstance(vocabulary, int):
        vocabulary = max([vocabulary, *(number + 1 for number in listed)])
    if isinstance(vocabulary, int):  # otherwise the ranks check the token ids
        sets = [Samples(path) for path in samples.iterdir() if path.is_dir()]
        largest = max(split.about["largest"]["input_ids"] for split in sets)
        check_tokens(vocabulary, largest, recipe.tokenizer or recipe.model)
    if job.purpose == "train" and not model.startswith(BY_TYPE):
        first = split_name(TRAIN, recipe.data_sets[0].name)
        settings_of_head = task.model_settings(Samples(samples / first))
        head = head_of(recipe, model, task.model_class, settings_of_head, adapters)
        notices += [head.notice] if head and head.notice else []
        if listed:
            check_new_tokens(task.model_class, config, listed, recipe)
        if adapters:
            check_continued(recipe, Path(adapters), task.model_class, config)
        elif recipe.adapters and recipe.adapters.adapter_targets:
            check_targets(task.model_class, config, recipe.adapters)
    report = json.loads((samples / REPORT).read_text(encoding="utf-8"))
    commits = {"model": "" if Path(recipe.model).exists() else commit_of(Path(own))}
    places = {"model": recipe.model}
    if adapters and recipe.adapter_base:
        commits["adapter_base"] = commit_of(Path(model))
        places["adapter_base"] = recipe.adapter_base
    for data_set, of_set in zip(recipe.data_sets, version, strict=True):
        what = split_name("data", data_set.name)
        commits[what] = commit_of(*(Path(name) for names in of_set.values() for name in names))
        places[what] = data_set.path
    commits = {what: commit for what, commit in commits.items() if commit}
    notices += [f"{what} {places[what]}: commit {commit}" for what, commit in commits.items()]
    return Inputs(
        model, folder, str(samples), notices + more, report, teacher, commits, adapters, new_ids
    )


def _write_places(path: Path, recipe: Recipe, parts: Mapping[str, PartOfRows]) -> None:
    """Write the places of drawn rows as JSON, without keeping all places in memory.

    Args:
        parts: drawn rows, by the name of the data set.
    """
    sources = {data_set.name: data_set.path for data_set in recipe.data_sets}
    several = len(sources) > 1
    with path.open("w", encoding="utf-8") as file:
        file.write("[" * several)
        for number, (name, rows) in enumerate(parts.items()):
            data = json.dumps(sources[name])
            file.write(", " * (number > 0) + f'{{"data": {data}, "rows": [')
            for row, (place, _) in enumerate(rows.with_places()):
                file.write(", " * (row > 0) + json.dumps(place))
            file.write("]}")
        file.write("]" * several + "\n")


def _saved_token_ids(adapters: Path) -> list[int]:
    """Return the token ids whose trained rows a folder of adapters contains.

    Raises:
        TrainError: the configuration contains something else than token ids.
    """
    config = read_json(adapters / ADAPTERS)
    try:
        by_layer = ids_by_layer(config if isinstance(config, dict) else {})
    except ValueError as error:
        raise TrainError(str(error)) from None
    return [number for ids in by_layer.values() for number in ids]


def _token_settings(
    job: Job, task: Task, trained: PretrainedConfig | None, longest: int | None,
    version: Sequence[Mapping[str, Sequence[str]]], earlier: Iterable[int],
) -> dict[str, Any]:  # fmt: skip
    """Return all settings that determine the token samples, excluding the contents of files.

    Args:
        trained: configuration of the trained model; None if the job trains.
        longest: maximum number of tokens in an input; None means no limit.
        version: strings that change when the data on the Hub change, by split, for each data set.
        earlier: hashes of the rows that the model was already trained on, ascending.
    """
    data = [
        part.source if part.source.startswith(GENERATED) else of_set or ""
        for part, of_set in zip(job.recipe.by_set(), version, strict=True)
    ]
    several = job.recipe.data if isinstance(job.recipe.data, tuple) else ()
    return {
        "task": job.recipe.task,
        "options": asdict(job.recipe.options),
        "split": job.recipe.training.data_seed,
        "purpose": job.purpose,
        "classes": trained.label2id if trained else None,
        "longest": longest,
        "task_settings": task.sample_settings(),
        "data": data[0] if len(data) == 1 else data,
        "transformers": transformers.__version__,
        # `encode` checks the classes against these settings
        "checked": [
            job.recipe.training.metric_for_best_model,
            job.recipe.training.label_smoothing_factor,
        ],
        "earlier": hash_of(array("q", (number >> 1 for number in earlier))),
        **({"sets": [[entry.name, dict(entry.fields)] for entry in several]} if several else {}),
        **({"splits": splits} if (splits := job.recipe.split_settings) else {}),
        **({"code": job.code.task.sha256} if job.code.task else {}),
        **({"own_metrics": task.own_metric_names} if task.own_metric_names else {}),
    }


def _check_ends(task: Task, config: PretrainedConfig, folder: Path) -> None:
    """Check that an encoder-decoder classifier gets equally many end-of-text tokens per sample.

    Such models classify a text at its last end-of-text token, and transformers requires that all
    samples in a batch have the same number of these tokens.

    Raises:
        TrainError: a sample has more or fewer end-of-text tokens than the other samples.
    """
    classifies = task.model_class is AutoModelForSequenceClassification
    if not (classifies and config.is_encoder_decoder):
        return
    end, usual = config.eos_token_id, None
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        for number, sample in enumerate(Samples(path), start=1):
            ends = sample["input_ids"].count(end)
            usual = ends if usual is None else min(usual, ends)
            if ends != usual:
                raise TrainError(
                    f"sample {number} of {path.name} contains {task.tokenizer.eos_token}, at which "
                    f"a {config.model_type} model classifies a text: "
                    f"{task.tokenizer.decode(sample['input_ids'])[:SHOWN_CHARACTERS]}",
                    "remove that token from the texts",
                )


def _data_version(recipe: Recipe) -> Mapping[str, list[str]]:
    """Return strings that change when the data on the Hub change, by split; {} for local data.

    Args:
        recipe: recipe with one data set.
    """
    if recipe.source.startswith(GENERATED) or Path(recipe.source).exists():
        return {}
    return dataset_version(recipe.source, recipe.data_config)


def _tokenizer(recipe: Recipe, model: str, models: Path, run_dir: Path) -> tuple[str, list[str]]:
    """Return the tokenizer's folder, and notices; train the tokenizer if there is none."""
    if recipe.tokenizer:
        return fetch_model(recipe.tokenizer, models, False, "tokenizer"), []
    if not model.startswith(BY_TYPE) and has_tokenizer(model):
        return model, []
    if not recipe.from_scratch or not recipe.spec.makes_tokenizer:
        raise TrainError(f"{recipe.model} has no tokenizer", "use another tokenizer: tokenizer=DIR")
    texts = itertools.chain.from_iterable(
        load_texts(part.source, part.data_config, part.options)[TRAIN] for part in recipe.by_set()
    )
    count = recipe.spec.new_vocabulary(recipe.options) or VOCABULARY
    tokenizer = train_tokenizer(texts, count)
    folder = run_dir / "tokenizer"
    tokenizer.save_pretrained(folder)
    return str(folder), [f"a tokenizer of {len(tokenizer)} tokens was trained on the data"]


def main() -> int:
    """Run the program and return its exit code."""
    gc.freeze()  # imported objects live until the end, so garbage collection can ignore them
    gc.enable()
    os.umask(ACCOUNT_ONLY)
    if "--hub-token" in sys.argv[2:]:
        os.environ["HF_TOKEN"] = sys.stdin.read().strip()
    transformers_logging.set_verbosity_error()  # hide warnings about long texts
    run_dir = Path(sys.argv[1])
    job_file = sys.argv[3] if sys.argv[2:3] == ["--job"] else ""
    try:
        hold_stack(own_stack())
        if sys.argv[1] == "--report":
            print(_report(sys.argv[2]))
            return 0
        with _one_host_at_a_time(run_dir) if job_file else contextlib.nullcontext():
            if job_file:
                write_atomically(run_dir / "job.json", Path(job_file).read_text(encoding="utf-8"))
            job = open_job(run_dir)
            inputs = prepare(job)
            write_inputs(run_dir, inputs)
        with contextlib.suppress(OSError):  # the next run prepares the inputs again
            keep_inputs(job, inputs)
    except (DataError, GivenFileError) as error:
        print(error)
        return 1
    except TrainError as error:
        return _refused(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _refused(code_failure(error))
        print(f"the disk of {error.filename or run_dir} is full")
        return 1
    except Exception as error:  # raised by the user's own task, or a bug
        return _refused(code_failure(error))
    return 0


def _refused(error: TrainError) -> int:
    print(error.message)
    print(error.hint)
    return 1


def _report(job: str) -> str:
    """Return the report on the training data, and notices, as JSON.

    Args:
        job: text of a job.json.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.json").write_text(job, encoding="utf-8")
        inputs = prepare(open_job(Path(folder)), weights=False)
    return json.dumps({"report": inputs.report, "notices": inputs.notices})


@contextlib.contextmanager
def _one_host_at_a_time(run_dir: Path) -> Iterator[None]:
    """Lock a folder that several hosts may share.

    The first host prepares everything, and the other hosts reuse the results.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "prepare.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # without file locks, each host does the work
            fcntl.lockf(lock, fcntl.LOCK_EX)  # also works over NFS, see fcntl_locking(2)
        yield


if __name__ == "__main__":
    sys.exit(main())
