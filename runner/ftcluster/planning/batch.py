"""Divide a batch among ranks, and estimate the memory of a rank. Pure functions only."""

import math
from dataclasses import dataclass

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.memory import (
    BF16_COPY,
    BYTES_A_PARAMETER,
    FP32,
    LOCAL,
    NF4,
    USABLE,
    ModelSize,
    Need,
    adapter_parameters,
    gigabytes,
    need,
    sharded_bytes,
)
from ftcluster.text.plural import counted
from ftcluster_common.protocol.kernel_limits import EVAL_TOKENS
from ftcluster_common.recipe import Recipe

BUCKET = 25 << 20  # bytes of a gradient bucket, as in torch's DistributedDataParallel


@dataclass(frozen=True)
class StepWorkload:
    """The samples of one optimizer step, and the settings that determine memory and traffic.

    Attributes:
        samples: global batch size, over all ranks; None for a user's script.
        each: number of samples of a rank in one gradient accumulation step. If 0, `samples`
            determines the batch.
        parts: number of gradient accumulation steps.
        tokens: maximum number of tokens of a text.
        texts: number of texts in a sample; the model computes each text separately.
        predicts_tokens: True if the loss is computed over the vocabulary at each target token.
        logits_share: fraction of a text's tokens for which logits are computed.
        precision: bf16 or fp32.
        model: size of the model; None if it is not known.
        ipex: True if IPEX optimizes the model.
        sharded: True if the optimizer is sharded over the ranks.
        local: True if hosts take local steps.
        adapter_rank: rank of low-rank adapters; None if all weights are trained.
        checkpointing: True if activations are recomputed in the backward pass.
        in_4bit: True if frozen weights are in NF4.
        merged: True if adapters are merged into the weights at the end of the training.
        evaluated: number of tokens that a rank evaluates at once; 0 without evaluation.
        targets: maximum number of target tokens of an encoder-decoder model; 0 for other models.
        dora: True if adapters have magnitudes (DoRA).
        trains_head: True if all weights of a classifier's head are trained along with adapters.
        can_load_in_4bit: True if the task can store frozen weights in NF4.
        sparse: True if the vector of a text contains an element for each token of the vocabulary.
    """

    samples: int | None = None
    each: int = 0
    parts: int = 1
    tokens: int = 0
    texts: int = 1
    predicts_tokens: bool = False
    logits_share: float = 1.0
    precision: str = "fp32"
    model: ModelSize | None = None
    ipex: bool = False
    sharded: bool = False
    local: bool = False
    adapter_rank: int | None = None
    checkpointing: bool = False
    in_4bit: bool = False
    merged: bool = False
    evaluated: int = 0
    targets: int = 0
    dora: bool = False
    trains_head: bool = False
    can_load_in_4bit: bool = False
    sparse: bool = False

    @classmethod
    def of(
        cls, recipe: Recipe, precision: str, model: ModelSize | None, ipex: bool
    ) -> "StepWorkload":
        """Return the workload of a recipe's optimizer steps."""
        longest = (model and model.positions) or recipe.max_length
        tokens = min(recipe.max_length, longest)  # longer texts are truncated, see tasks.base
        training, spec = recipe.training, recipe.spec
        # the loss compares the outputs with the outputs of the initial model, or of a teacher
        compared = spec.compares_with_start(recipe.options) or recipe.teacher is not None
        evaluates = compared or training.eval_strategy != "no" or training.eval_on_start
        most = training.per_device_eval_batch_size
        return cls(
            samples=recipe.batch_size,
            each=recipe.training.per_device_train_batch_size or 0,
            parts=recipe.training.gradient_accumulation_steps,
            tokens=tokens,
            texts=recipe.texts_of_a_sample,
            predicts_tokens=spec.predicts_tokens,
            logits_share=_logits_share(recipe, ipex),
            precision=precision,
            model=model,
            ipex=ipex,
            local=recipe.training.sync == "local",
            adapter_rank=recipe.lora_r,
            checkpointing=recipe.training.gradient_checkpointing,
            in_4bit=recipe.load_in_4bit,
            merged=recipe.adapters is not None and recipe.adapters.merge_adapters,
            evaluated=min(EVAL_TOKENS, most * tokens if most else EVAL_TOKENS) * evaluates,
            targets=spec.target_length(recipe.options),
            dora=recipe.adapters is not None and recipe.adapters.use_dora,
            trains_head=spec.has_trained_head,
            can_load_in_4bit=spec.can_load_in_4bit,
            sparse=spec.is_sparse_encoder,
        )

    def total(self, world: int) -> int | None:
        """Return the global batch size for `world` ranks; None if it is not known."""
        return self.each * self.parts * world if self.each else self.samples

    def is_enough(self, world: int) -> bool:
        """Return True if each of `world` ranks has a sample, or if the batch size is not known."""
        samples = self.total(world)
        return samples is None or samples >= world

    def share(self, rank: int, world: int) -> int:
        """Return a rank's number of samples in a batch; 0 if the batch size is not known.

        If the batch size is not divisible by `world`, the first ranks get one more sample.
        """
        each, more = divmod(self.total(world) or 0, world)
        return each + (rank < more)

    def at_once(self, world: int) -> int:
        """Return the maximum number of samples that a rank computes at once."""
        return math.ceil(self.share(0, world) / self.parts)

    def need(self, world: int) -> Need | None:
        """Return the memory that the rank with the most samples needs; None if it is not known."""
        if self.model is None or self.samples is None:
            return None
        texts = self.at_once(world) * self.texts
        return need(
            self.model, self.precision, texts, self.tokens, self.predicts_tokens, self.ipex,
            world if self.sharded else None, self.local and world > 1,
            self.adapter_rank, self.checkpointing, self.in_4bit, self.merged, self.evaluated,
            self.targets, self.logits_share, self.dora, self.trains_head,
            self.vectors(world) if self.sparse else 0,
        )  # fmt: skip

    def vectors(self, world: int) -> int:
        """Return the number of vectors of texts that the rank with the most samples keeps at once.

        The backward pass of an accumulation step keeps its vectors, their positions and two
        gradients. Each rank keeps the vectors of all its steps with their gradients. The loss of
        the whole batch keeps two copies of the vectors of all ranks with their gradients: a copy in
        the order of ranks, and a copy that is grouped by kind.
        """
        of_rank = 4 * self.at_once(world) + 2 * self.share(0, world)
        return self.texts * (of_rank + 4 * (self.total(world) or 0))

    def sent_at_once(self, bucket_mib: int | None) -> int:
        """Return the bytes of the largest all-reduce of fp32 gradients: at most one bucket.

        Args:
            bucket_mib: bucket size in MiB; None for torch's default.
        """
        most = bucket_mib << 20 if bucket_mib else BUCKET
        if self.model is None:
            return most
        trained = self.model.parameters
        if self.adapter_rank is not None:
            trained = adapter_parameters(self.model, self.adapter_rank, self.trains_head)
        return min(most, FP32 * trained)

    def fits(self, host: HostFacts, ranks: int, world: int) -> bool:
        """Return True if `ranks` ranks fit into a host's memory, or if the need is not known."""
        needed = self.need(world)
        return needed is None or ranks * needed.total <= USABLE * host.memory_bytes

    def check_samples(self, world: int, hosts: int) -> None:
        """Check that every rank has a sample.

        Raises:
            PlanError: there are more ranks than samples.
        """
        if self.samples is None or self.is_enough(world):
            return
        if self.samples >= hosts:
            fewer = f"--ranks-per-host {self.samples // hosts}"
        else:
            fewer = f"--nodes {self.samples}" + (" --ranks-per-host 1" if world > hosts else "")
        raise PlanError(
            f"a batch of {counted(self.samples, 'sample')} is too small for {world} ranks",
            f"use a larger batch (batch_size={world}) or fewer ranks ({fewer})",
        )

    def check_memory(self, facts: ClusterFacts, counts: dict[str, int]) -> None:
        """Check that the model fits into the memory of every host.

        Raises:
            PlanError: a host has too little memory; lists the memory of each such host, and the
                memory that its ranks need.
        """
        world = sum(counts.values())
        needed = self.need(world)
        full = [host for host in facts.hosts if not self.fits(host, counts[host.name], world)]
        if needed is None or not full:
            return
        lines = [
            f"{host.name}: {gigabytes(host.memory_bytes)}, {counted(counts[host.name], 'rank')}"
            for host in full
        ]
        advice = []
        if any(counts[host.name] > 1 for host in full):
            advice.append("fewer ranks (--ranks-per-host 1)")
        if self.at_once(world) > 1:
            parts = 2 * self.parts
            advice.append(f"smaller micro-batches (training.gradient_accumulation_steps={parts})")
        if not self.checkpointing:
            advice.append("recomputed activations (training.gradient_checkpointing=true)")
        whole = self.ipex or self.adapter_rank is not None
        shared = self.sharded or (world == 1 and not whole)  # more hosts would shard the optimizer
        better = ["more hosts"] * shared + ["hosts with more memory"]
        if world > 1 and not (self.sharded or whole or self.local):
            better.insert(0, "a sharded optimizer (training.shard_optimizer=true)")
        if self.adapter_rank is not None and self.can_load_in_4bit and not self.in_4bit:
            better.insert(0, "weights in NF4 (load_in_4bit=true)")
        advice += ["shorter samples", *better]
        if any(needed.states + needed.runtime > USABLE * host.memory_bytes for host in full):
            advice = ["a smaller model", *better]
        raise PlanError(
            f"not enough memory: a rank needs {self.explain(needed, world)}, and the ranks of a "
            f"host may use {USABLE:.0%} of its memory\n  " + "\n  ".join(lines),
            f"use {', '.join(advice[:-1])} or {advice[-1]}",
        )

    def explain(self, needed: Need, world: int) -> str:
        """Describe in words how much memory a rank needs: the total and its parts."""
        assert self.model is not None
        each: float
        if self.adapter_rank is not None:
            each = needed.states / self.model.parameters
            kept = f"NF4, embeddings in {self.precision}" if self.in_4bit else self.precision
            what = f"weights in {kept}, and adapters with their optimizer"
        elif self.sharded:
            fp32 = "fp32 weights, gradients" if self.precision == "bf16" else "gradients"
            what = f"weights in {self.precision}, and 1/{world} of {fp32} and AdamW's two states"
            each = sharded_bytes(self.precision, world)
        else:
            what = "weights, gradients and AdamW's two states in fp32"
            if self.precision == "bf16":
                what += ", and weights in bf16"
            if self.local and world > 1:
                what += ", and four more fp32 values for local steps"
            each = needed.states // self.model.parameters
        text = (
            f"{gigabytes(needed.total)}: {each:.3g} bytes ({what}) for each of "
            f"{self.model.parameters / 1e6:,.0f} million parameters, "
            f"{gigabytes(needed.runtime)} for Python and its libraries"
        )
        samples = counted(self.at_once(world), "sample")
        if self.texts > 1:
            samples += f" with {self.texts} texts each,"
        if needed.evaluating > max(needed.activations, needed.saving):
            text += f", {gigabytes(needed.evaluating)} to evaluate {self.evaluated} tokens at once"
            text += " and the teacher" if self.model.teacher else ""
        elif needed.saving > needed.activations:
            what = f"{'load and ' * self.sharded}save all weights in fp32"
            if self.in_4bit:
                what = f"save all weights in {self.precision}" if self.merged else "quantize layers"
            text += f", {gigabytes(needed.saving)} to {what}"
        elif needed.activations:
            text += (
                f", {gigabytes(needed.activations)} for the activations of "
                f"{samples} of {self.tokens} tokens"
            ) + (f" and {self.targets} to generate" if self.targets else "")
            text += " and for vectors over the vocabulary" if self.sparse else ""
        return text

    def decision(self, samples: int, world: int) -> tuple[str, str]:
        """Return the number of samples of each rank as text, and the reason."""
        if self.each:
            parts = f" x {self.parts} accumulation steps" if self.parts > 1 else ""
            why = f"per_device_train_batch_size {self.each} x {counted(world, 'rank')}{parts}"
            return f"{self.each * self.parts * world} samples", f"{why}, instead of batch_size"
        each, more = divmod(samples, world)
        in_parts = f", in {self.parts} accumulation steps" if self.parts > 1 else ""
        if world == 1:
            return counted(samples, "sample"), f"one rank gets the whole batch{in_parts}"
        if not more:
            why = f"a batch of {samples} on {world} ranks{in_parts}"
            return f"{counted(each, 'sample')} a rank", why
        last = f"rank {world - 1}" if more == world - 1 else f"ranks {more}-{world - 1}"
        first = "rank 0" if more == 1 else f"ranks 0-{more - 1}"
        busy = samples / world / (each + 1)
        return (
            f"{each + 1} samples on {first}, {each} on {last}",
            f"a batch of {samples} is not divisible by {world} ranks{in_parts}; every sample "
            f"counts equally, but ranks wait about {1 - busy:.0%} of the time; batch_size="
            f"{world * each} or {world * (each + 1)} avoids this",
        )

    def memory_decision(self, world: int) -> tuple[str, str]:
        """Return the memory that a rank needs as text, and its parts as the reason."""
        needed = self.need(world)
        if needed is None:
            a_parameter = BYTES_A_PARAMETER + (LOCAL if self.local and world > 1 else 0)
            what = f"weights, gradients and AdamW take {a_parameter} bytes per parameter"
            if self.adapter_rank is not None:
                each = NF4 if self.in_4bit else BF16_COPY if self.precision == "bf16" else FP32
                what = f"weights that are not trained take {each:.2g} bytes per parameter"
            return (
                "unknown",
                "ftcluster reads a model's size only from safetensors files in a local folder or "
                f"in the local Hub cache; {what}",
            )
        _, _, why = self.explain(needed, world).partition(": ")
        return f"up to {gigabytes(needed.total)}", why


def _logits_share(recipe: Recipe, ipex: bool) -> float:
    """Return the largest fraction of a text's tokens for which logits are computed.

    If the last layer is fused with the loss, logits are computed only for target tokens. In masked
    language models, the masked tokens are the targets. In conversations, the answers are the
    targets, which may be nearly all tokens. If the last layer is not fused, logits are computed for
    all tokens.
    """
    fused = not ipex and not recipe.training.label_smoothing_factor
    return recipe.spec.logits_share(recipe.options) if fused else 1.0
