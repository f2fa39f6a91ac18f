"""How a batch is shared by the ranks, and the memory that a share needs. Pure functions only."""

import math
from dataclasses import dataclass

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.memory import BYTES_A_PARAMETER, USABLE, ModelSize, Need, gigabytes, need
from ftcluster_common.recipe import CausalLm, Recipe


@dataclass(frozen=True)
class Batch:
    """The samples of one optimizer step, and what is known of their cost.

    Attributes:
        samples: of all ranks together; None where a program of the user's own decides.
        parts: that a rank computes its share in, one after the other.
        tokens: the most that a sample has.
        predicts_tokens: whether the loss is over the vocabulary at every token.
        precision: bf16 or fp32.
        model: its size, where it is known.
        ipex: whether IPEX optimizes it.
    """

    samples: int | None = None
    parts: int = 1
    tokens: int = 0
    predicts_tokens: bool = False
    precision: str = "fp32"
    model: ModelSize | None = None
    ipex: bool = False

    @classmethod
    def of(cls, recipe: Recipe, precision: str, model: ModelSize | None, ipex: bool) -> "Batch":
        """What a recipe says."""
        return cls(
            samples=recipe.batch_size,
            parts=recipe.training.gradient_accumulation_steps,
            tokens=recipe.max_length,
            predicts_tokens=isinstance(recipe.options, CausalLm),
            precision=precision,
            model=model,
            ipex=ipex,
        )

    def share(self, rank: int, world: int) -> int:
        """Samples of a batch that a rank has; 0 where that is not known.

        The first ranks have one more where the batch cannot be divided.
        """
        each, more = divmod(self.samples or 0, world)
        return each + (rank < more)

    def at_once(self, world: int) -> int:
        """The most samples that a rank computes at once."""
        return math.ceil(self.share(0, world) / self.parts)

    def need(self, world: int) -> Need | None:
        """The memory of the rank with the largest share; None where it is not known."""
        if self.model is None or self.samples is None:
            return None
        samples = self.at_once(world)
        return need(
            self.model, self.precision, samples, self.tokens, self.predicts_tokens, self.ipex
        )

    def fits(self, host: HostFacts, ranks: int, world: int) -> bool:
        """Whether so many ranks have the memory they need on a host, as far as that is known."""
        needed = self.need(world)
        return needed is None or ranks * needed.total <= USABLE * host.memory_bytes

    def check_samples(self, world: int, hosts: int) -> None:
        """Make sure that every rank has a sample.

        Raises:
            PlanError: there are more ranks than samples.
        """
        if self.samples is None or self.samples >= world:
            return
        if self.samples >= hosts:
            fewer = f"--ranks-per-host {self.samples // hosts}"
        else:
            fewer = f"--nodes {self.samples}" + (" --ranks-per-host 1" if world > hosts else "")
        raise PlanError(
            f"a batch of {self.samples} samples cannot be shared by {world} ranks",
            f"raise it (batch_size={world}) or take fewer ranks ({fewer})",
        )

    def check_memory(self, facts: ClusterFacts, counts: dict[str, int]) -> None:
        """Make sure that the model fits every host.

        Raises:
            PlanError: it does not; says for each host what it has and what the ranks need.
        """
        world = sum(counts.values())
        needed = self.need(world)
        full = [host for host in facts.hosts if not self.fits(host, counts[host.name], world)]
        if needed is None or not full:
            return
        lines = [
            f"{host.name} has {gigabytes(host.memory_bytes)} for {_ranks(counts[host.name])}"
            for host in full
        ]
        advice = []
        if any(counts[host.name] > 1 for host in full):
            advice.append("fewer ranks (--ranks-per-host 1)")
        if self.at_once(world) > 1:
            parts = 2 * self.parts
            advice.append(f"smaller parts (training.gradient_accumulation_steps={parts})")
        advice += ["shorter samples", "hosts with more memory"]
        if any(needed.states + needed.runtime > USABLE * host.memory_bytes for host in full):
            advice = ["a smaller model", "hosts with more memory"]  # nothing else would do
        raise PlanError(
            f"the model does not fit: a rank needs {self.explain(needed, world)}, and "
            f"{USABLE:.0%} of a host's memory is for its ranks\n  " + "\n  ".join(lines),
            f"take {', '.join(advice[:-1])} or {advice[-1]}",
        )

    def explain(self, needed: Need, world: int) -> str:
        """A need in words, with all numbers it is made of."""
        assert self.model is not None
        what = "weights, gradients and AdamW's two states in fp32"
        if self.precision == "bf16":
            what += ", and weights in bf16"
        each = needed.states // self.model.parameters
        words = (
            f"{gigabytes(needed.total)}: {each} bytes ({what}) for each of "
            f"{self.model.parameters / 1e6:,.0f} million parameters, "
            f"{gigabytes(needed.runtime)} for the program"
        )
        samples = self.at_once(world)
        if needed.activations:
            words += (
                f", {gigabytes(needed.activations)} for the activations of {samples} "
                f"sample{'s' * (samples != 1)} of {self.tokens} tokens"
            )
        return words

    def decision(self, samples: int, world: int) -> tuple[str, str]:
        """What each rank gets of a batch of so many samples, and why."""
        each, more = divmod(samples, world)
        in_parts = f", in {self.parts} parts one after the other" if self.parts > 1 else ""
        if world == 1:
            return _samples(samples), f"one rank has the whole batch{in_parts}"
        if not more:
            why = f"a batch of {samples} shared by {_ranks(world)}{in_parts}"
            return f"{_samples(each)} a rank", why
        last = f"rank {world - 1}" if more == world - 1 else f"ranks {more}-{world - 1}"
        first = "rank 0" if more == 1 else f"ranks 0-{more - 1}"
        busy = samples / world / (each + 1)
        return (
            f"{each + 1} samples on {first}, {each} on {last}",
            f"a batch of {samples} cannot be shared evenly by {world} ranks{in_parts}; every "
            f"sample still weighs the same, but ranks wait about {1 - busy:.0%} of the time; "
            f"batch_size={world * each} or {world * (each + 1)} would be even",
        )

    def memory_decision(self, world: int) -> tuple[str, str]:
        """The memory of a rank, and where the number is from."""
        needed = self.need(world)
        if needed is None:
            return (
                "not estimated",
                "the model's size is known before the launch only where it is a folder here with "
                f"safetensors; weights, gradients and AdamW take {BYTES_A_PARAMETER} bytes a "
                "parameter",
            )
        _, _, why = self.explain(needed, world).partition(": ")
        return f"up to {gigabytes(needed.total)}", why


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _samples(count: int) -> str:
    return f"{count} sample{'s' * (count != 1)}"
