"""The recipe of a training: what the control node checks and the hosts read. Standard library only.

The fields of each task are in `tasks`. Names, meanings and defaults of `Training` are those of
transformers 5.23; docs/recipes.md says where a default is another one, and why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ftcluster_common.limits import limited
from ftcluster_common.tasks.registry import DEFAULT_TASK, AnyTask, spec_of
from ftcluster_common.tasks.spec import Adapters, Options

Strategy = Literal["no", "steps", "epoch"]
# those of transformers that need nothing but the number of the step
Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]


@dataclass(frozen=True)
class Training:
    """How the model is trained; the names are those of transformers' TrainingArguments.

    docs/recipes.md has what each field means. Numbers of steps are optimizer steps.
    """

    learning_rate: float = limited(5e-5, above=0)
    lr_scheduler_type: Schedule = "linear"
    lr_scheduler_kwargs: Mapping[str, Any] = field(default_factory=dict)
    warmup_ratio: float = limited(0.0, at_least=0, at_most=1)
    warmup_steps: float = limited(0.0, at_least=0)
    num_train_epochs: float = limited(3.0, above=0)
    max_steps: int = -1
    per_device_train_batch_size: int | None = limited(None, at_least=1)
    per_device_eval_batch_size: int | None = limited(None, at_least=1)
    gradient_accumulation_steps: int = limited(1, at_least=1)
    optim: Literal["adamw_torch_fused", "adamw_torch"] = "adamw_torch_fused"
    weight_decay: float = limited(0.0, at_least=0)
    adam_beta1: float = limited(0.9, at_least=0, below=1)
    adam_beta2: float = limited(0.999, at_least=0, below=1)
    adam_epsilon: float = limited(1e-8, at_least=0)
    max_grad_norm: float = limited(1.0, at_least=0)
    label_smoothing_factor: float = limited(0.0, at_least=0, at_most=1)
    logging_strategy: Strategy = "steps"
    logging_steps: float = limited(10.0, above=0)
    logging_first_step: bool = False
    eval_strategy: Strategy = "epoch"
    eval_steps: float | None = limited(None, above=0)
    eval_on_start: bool = False
    save_strategy: Literal["no", "steps", "epoch", "best"] = "no"
    save_steps: float = limited(500.0, above=0)
    save_total_limit: int | None = limited(5, at_least=1)
    # True, which transformers takes, is refused
    resume_from_checkpoint: str | Literal[True] | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    early_stopping_patience: int | None = limited(None, at_least=1)
    early_stopping_threshold: float = limited(0.0, at_least=0)
    seed: int = limited(42, at_least=0, below=1 << 32)  # numpy takes no larger one
    data_seed: int | None = limited(None, at_least=0)
    full_determinism: bool = False
    group_by_length: bool = True
    dataloader_drop_last: bool = False
    gradient_checkpointing: bool = False
    report_to: (
        Literal["none", "tensorboard", "trackio", "mlflow", "wandb"]
        | tuple[Literal["tensorboard", "trackio", "mlflow", "wandb"], ...]
    ) = "none"
    run_name: str | None = None
    use_ipex: Literal["auto", True, False] = "auto"
    ddp_backend: Literal["auto", "impi", "gloo", "ccl"] = "auto"
    ddp_bucket_cap_mb: int | None = limited(None, at_least=1)
    # ftcluster's own
    shard_optimizer: Literal["auto", True, False] = "auto"
    gradient_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    sync: Literal["step", "local"] = "step"
    sync_steps: int = limited(32, at_least=2)
    sync_dtype: Literal["bf16", "int8"] = "bf16"
    outer_learning_rate: float = limited(0.7, above=0)
    outer_momentum: float = limited(0.5, at_least=0, below=1)


GENERATED = "generated:"  # begins the data of a recipe: train=N,validation=N,seed=N follow
BY_TYPE = "config:"  # begins a model without weights: a type of model follows


def split_revision(name: str) -> tuple[str, str | None]:
    """A name of the Hub without its revision, and that: a branch, a tag or a commit.

    >>> split_revision("google-bert/bert-base-uncased@86b5e09"), split_revision("gpt2")
    (('google-bert/bert-base-uncased', '86b5e09'), ('gpt2', None))
    """
    plain, at, revision = name.partition("@")
    return plain, revision if at else None


@dataclass(frozen=True)
class Recipe:
    """One training job, independent of the cluster it runs on; see also docs/recipes.md.

    Attributes:
        name: the recipe's file name without its ending.
        task: what kind of model is trained.
        model: a folder, or a name of the Hub; likewise tokenizer. Behind a name of the Hub, also
            of data, may be @ and a branch, tag or commit, see `split_revision`.
        data: a file or a folder (see docs/recipes.md), `generated:train=N,validation=N,seed=N`, or
            a name for `datasets.load_dataset`.
        precision: auto takes bf16 where the CPUs have instructions for it. The model then computes
            with weights in bf16; the master weights and what is saved are fp32.
        teacher: the classifier or embedder that a distillation learns from, as `model`.
        communication_cores: cores of each rank that no thread computes on; None: the plan decides.
        allocator: auto takes tcmalloc where a host has it.
        license: of the trained model, such as apache-2.0, for its card, which has none otherwise.
        card_host_names: whether the card has the names of the hosts.
        options: the fields of the task, which a recipe has at its top level.
    """

    name: str
    model: str
    data: str
    options: Options
    task: str = DEFAULT_TASK
    from_scratch: bool = False
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    teacher: str | None = None
    data_config: str | None = None
    batch_size: int = limited(32, at_least=1)
    ranks_per_host: int | None = limited(None, at_least=1)
    communication_cores: int | None = limited(None, at_least=0)
    allocator: Literal["auto", "tcmalloc", "libc"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    attention_dropout: bool = True
    license: str | None = None
    card_host_names: bool = False
    training: Training = field(default_factory=Training)

    @property
    def spec(self) -> AnyTask:
        """The declaration of the task."""
        return spec_of(self.options)

    @property
    def max_length(self) -> int:
        """The maximum length of a text in tokens, or of a sample, where that is one text."""
        return self.spec.max_length(self.options)

    @property
    def adapters(self) -> Adapters | None:
        """How low-rank adapters are trained, if they are."""
        return self.spec.adapters(self.options)

    @property
    def lora_r(self) -> int | None:
        """The rank of low-rank adapters, if those are trained."""
        return self.adapters.lora_r if self.adapters else None

    @property
    def load_in_4bit(self) -> bool:
        """Whether weights that are not trained are in NF4."""
        return self.spec.load_in_4bit(self.options)

    @property
    def texts_of_a_sample(self) -> int:
        """How many texts the model computes one by one, without those of columns found later."""
        return self.spec.texts_of_a_sample(self.options)
