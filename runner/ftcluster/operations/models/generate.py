"""Generate texts with a trained language model, on the head of a cluster."""

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import InputError, UsageError
from ftcluster.launch import training_run
from ftcluster.launch.follow import new_run_id
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.mpirun import render
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.runs import find_job
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.connection import Connection, cluster_of
from ftcluster.operations.train.plan_result import PlanResult
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.operations.train.recipe_words import for_trained_model, on_the_hosts, training_recipe
from ftcluster.planning.model_size import model_size
from ftcluster.planning.plan import first_hosts
from ftcluster.planning.spares import plan_with_spares
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.recipe.inputs import TOKENIZERS, check_exists
from ftcluster.stacks.catalog import load_stacks
from ftcluster_common.protocol.job import GENERATE
from ftcluster_common.recipe import Recipe

NAME = "generate"


@dataclass(frozen=True)
class Sampling:
    """The settings for sampling the next token.

    Attributes:
        system: system message before the prompt; "" for none.
        max_new_tokens: maximum number of tokens per answer.
        temperature: sampling temperature; 0 always takes the most probable token.
        top_p: cumulative probability of the tokens to sample from.
        seed: seed of the sampling; equal seeds give equal texts on the same host.
    """

    system: str = ""
    max_new_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 0.95
    seed: int = 42

    def __post_init__(self) -> None:
        """Check the ranges of all settings.

        Raises:
            UsageError: settings are out of range; lists all of them.
        """
        allowed = {
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "temperature": (0 <= self.temperature <= 10, "from 0 to 10"),
            "top_p": (0 < self.top_p <= 1, "above 0, at most 1"),
            "seed": (0 <= self.seed < 1 << 32, "a whole number from 0"),
        }
        wrong = [
            f"{name}={getattr(self, name)}: must be {meant}"
            for name, (right, meant) in allowed.items()
            if not right
        ]
        if wrong:
            raise UsageError("; ".join(wrong))


@dataclass(frozen=True)
class GenerateRequest:
    """Prompts for a model.

    Attributes:
        model: id of the run that trained the model, a folder on this machine, or a name on the Hub.
        prompts: prompts to answer separately, with the model's chat template if it has one.
        hub_token: True if the head may use the user's token for the Hugging Face Hub.
        more: iterator over further prompts, read one by one as answers are complete. The
            model stays loaded until the iterator ends.
    """

    model: str
    prompts: tuple[str, ...]
    sampling: Sampling = field(default_factory=Sampling)
    hub_token: bool = False
    launch: LaunchOptions = field(default_factory=lambda: LaunchOptions(max_restarts=0))
    connection: Connection = field(default_factory=Connection)
    more: Iterator[str] | None = None

    def __post_init__(self) -> None:
        """Check that there is a prompt, and that no prompt is empty.

        Raises:
            UsageError: there is no prompt, or a prompt is empty.
        """
        if not self.prompts or not all(prompt.strip() for prompt in self.prompts):
            raise UsageError(
                "the prompt is missing or empty", 'pass one: ftcluster generate RUN "a question"'
            )


@dataclass(frozen=True)
class GenerateResult:
    """The texts that a model has generated; there are none if the run was detached."""

    request: GenerateRequest
    progress: RunProgress

    @property
    def answers(self) -> list[str]:
        """The generated texts, one for each prompt."""
        return list(self.progress.result.get("answers", ()))

    def lines(self) -> list[str]:
        """Return the texts; for a detached run, the run's id."""
        return self.answers if self.progress.state != "running" else [self.progress.run]

    def document(self) -> dict[str, Any]:
        """Return the document that `generate --json` prints."""
        result = self.progress.result
        running = {"run": self.progress.run, "state": self.progress.state}
        if self.progress.state == "running":
            return running
        return {
            **running,
            "model": self.request.model,
            **asdict(self.request.sampling),
            "answers": [
                {"prompt": prompt, "answer": answer}
                for prompt, answer in zip(self.request.prompts, self.answers, strict=False)
            ],
            "tokens": result.get("tokens"),
            "tokens_per_second": result["samples_per_second"],
            "seconds": self.progress.seconds,
        }


def dry_run(request: GenerateRequest, view: View) -> PlanResult:
    """Return the run that `generate` would launch. This raises the same errors as `generate`."""
    return PlanResult(_prepared(request, cluster_of(request.connection, view)))


def generate(
    request: GenerateRequest, view: View, take: Callable[[int, str], None] = lambda *_: None
) -> GenerateResult:
    """Generate an answer to each prompt.

    Args:
        take: function that is called as soon as a piece of an answer is generated, with the index
            of the prompt and the piece.

    Raises:
        FtclusterError: there is no such model, the model is not a language model, or the run
            failed.
    """
    cluster = cluster_of(request.connection, view)
    run = _prepared(request, cluster)

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] in ("text", "answered"):
            view.close()  # the live display would overwrite the text
        if event["event"] == "text":
            take(event["prompt"], event["text"])
        elif event["event"] == "answered" and request.more:
            line = json.dumps(next(request.more, None))  # null ends the prompts
            with typed.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    with tempfile.TemporaryDirectory() as folder:
        typed = Path(folder) / "prompts"
        typed.touch()
        run = replace(run, prompts=str(typed) if request.more else "")
        progress = training_run.train(run, view, request.connection.to(cluster), on_event=on_event)
    return GenerateResult(request, progress)


def _prepared(request: GenerateRequest, cluster: Cluster) -> TrainingRun:
    recipe, folders, cluster = _recipe(request, cluster)
    facts = first_hosts(cluster.usable, 1)
    size = model_size(Path(request.model))
    plan = plan_with_spares(
        facts, (), recipe, load_stacks(), 1, size, False, drained=cluster.drained
    )
    run_id = new_run_id(NAME)
    launch = render(plan, run_id, slurm_job=cluster.slurm_job)
    generation = {
        "prompts": list(request.prompts), "more": bool(request.more), **asdict(request.sampling),
    }  # fmt: skip
    token = find_token() if request.hub_token else ""
    run = TrainingRun(
        run_id, cluster, plan, launch, recipe, folders, purpose=GENERATE, generation=generation,
        hub_token=token,
    )  # fmt: skip
    # no time limit, because the run waits while the user types
    limit = 0.0 if request.more else request.launch.hang_seconds
    return replace(request.launch, hang_seconds=limit).applied_to(run)


def _recipe(
    request: GenerateRequest, cluster: Cluster
) -> tuple[Recipe, tuple[tuple[str, str], ...], Cluster]:
    """Return the recipe for generating, the folders to copy, and the cluster of usable hosts.

    The model of a run is on the run's head, so only that host can generate with it.
    """
    folder, facts = Path(request.model), first_hosts(cluster.usable, 1)
    if folder.is_dir():
        if not any((folder / name).is_file() for name in TOKENIZERS):
            raise InputError(f"{folder} contains no tokenizer (one of {', '.join(TOKENIZERS)})")
        return *on_the_hosts(_of_model(request.model), facts), cluster
    if "/" in request.model or "@" in request.model:
        check_exists("model", request.model)
        return _of_model(request.model), (), cluster
    hosts = replace(run_hosts_of(cluster), options=request.connection.to(cluster))
    job = find_job(hosts, request.model)
    if not job.recipe.spec.generates:
        raise UsageError(
            f"run {job.run} trained a model for {job.recipe.task}, but generate needs a decoder",
            "copy the model here with ftcluster fetch, and use it with ftcluster predict",
        )
    model = f"{facts.head.prefix}/runs/{job.run}/model"
    on_head = cluster if cluster.slurm_job else with_hosts(cluster, job.hosts[:1])
    return for_trained_model(replace(job.recipe, model=model)), (), on_head


def _of_model(model: str) -> Recipe:
    """Return a language-model recipe for this model. Generation does not read the recipe's data."""
    return for_trained_model(training_recipe(("clm",), None, model, trains=False))
