"""Fields of TrainingArguments that a recipe cannot have: why not, and what to write instead.

The names are those of transformers 5.23 and 4.55, and three of older releases. A test compares
them, together with the fields that are honoured, with what those versions have.
"""

from collections.abc import Mapping

_BY_REASON: Mapping[str, tuple[str, ...]] = {
    # the batch
    "batch_size is the whole batch of a step, whatever the number of ranks: write batch_size": (
        "per_device_train_batch_size",
        "per_gpu_train_batch_size",
    ),
    "the batch of a step is what batch_size says: where memory is short, raise "
    "gradient_accumulation_steps": ("auto_find_batch_size",),
    "evaluation makes its own batches, which the metrics do not depend on: leave it out": (
        "per_device_eval_batch_size",
        "per_gpu_eval_batch_size",
        "eval_accumulation_steps",
    ),
    "the loss is always the mean over the whole batch, of all ranks: leave it out": (
        "average_tokens_across_devices",
    ),
    # numbers
    "bf16 is chosen with the recipe's own field: write precision: bf16, or fp32, or auto": (
        "bf16",
    ),
    "evaluation has the precision of the training: write precision: bf16, or fp32, or auto": (
        "bf16_full_eval",
        "fp16_full_eval",
    ),
    "the CPUs train in fp32 or bf16: write precision: bf16, or fp32, or auto": (
        "fp16",
        "fp16_opt_level",
        "fp16_backend",
        "half_precision_backend",
    ),
    "it is about GPUs, and the hosts' CPUs are what trains: leave it out": (
        "tf32",
        "no_cuda",
        "use_cpu",
        "use_mps_device",
        "tpu_num_cores",
        "tpu_metrics_debug",
        "torch_empty_cache_steps",
        "use_liger_kernel",
        "liger_kernel_config",
        "dataloader_pin_memory",
    ),
    # model and optimizer
    "the model is not compiled; torch's own kernels use AMX and AVX512: leave it out": (
        "torch_compile",
        "torch_compile_backend",
        "torch_compile_mode",
        "torchdynamo",
        "jit_mode_eval",
    ),
    "the optimizer is AdamW with weight_decay, adam_beta1, adam_beta2 and adam_epsilon: leave it "
    "out": ("adafactor", "optim_args", "optim_target_modules"),
    "gradient_checkpointing has no settings: leave it out": (
        "gradient_checkpointing_kwargs",
        "activation_checkpointing_kwargs",
    ),
    "the engine adds no noise to embeddings: leave it out": ("neftune_noise_alpha",),
    "the model trains and is evaluated without a cache of keys and values: leave it out": (
        "use_cache",
        "past_index",
    ),
    # data
    "samples are tokenised before the ranks start and mapped from the disk, so nothing loads them "
    "beside the ranks: leave it out": (
        "dataloader_num_workers",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
    ),
    "the recipe's task says which columns are read, and their lengths are known: leave it out": (
        "remove_unused_columns",
        "label_names",
        "length_column_name",
    ),
    # evaluation
    "every run trains; whether it evaluates is eval_strategy: write that": (
        "do_train",
        "do_eval",
        "do_predict",
    ),
    "it is called eval_strategy: write that": ("evaluation_strategy",),
    "every evaluation that falls due is made: choose with eval_strategy and eval_steps": (
        "eval_delay",
    ),
    "the task says what is predicted and measured, of all samples at once; classification has the "
    "field metrics: leave it out": (
        "prediction_loss_only",
        "include_for_metrics",
        "include_inputs_for_metrics",
        "batch_eval_metrics",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        "use_legacy_prediction_loop",
    ),
    # progress and reports
    "progress is told by the first rank, on the terminal or with --json: leave it out": (
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "disable_tqdm",
    ),
    "a loss that is not a number ends the run with an error: leave it out": (
        "logging_nan_inf_filter",
    ),
    "tokens are not counted; the speed is told in samples a second: leave it out": (
        "include_num_input_tokens_seen",
        "include_tokens_per_second",
    ),
    "reports go to TensorBoard or MLflow: write report_to: tensorboard, or mlflow": (
        "project",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
    ),
    "there is nothing in this engine that it switches on: leave it out": (
        "debug",
        "skip_memory_metrics",
    ),
    # folders and checkpoints
    "each run has a folder of its own on the head host, and its result says where the model is: "
    "leave it out": ("output_dir", "overwrite_output_dir"),
    "reports are in the folder reports of the run: leave it out": ("logging_dir",),
    "checkpoints are whole, in safetensors, and one for all hosts: leave it out": (
        "save_only_model",
        "save_on_each_node",
        "save_safetensors",
        "enable_jit_checkpoint",
    ),
    "which run goes on from where is not a matter of the recipe: leave it out": (
        "resume_from_checkpoint",
        "restore_callback_states_from_checkpoint",
        "ignore_data_skip",
    ),
    "the model stays on the cluster; nothing is sent to the Hub: leave it out": (
        "push_to_hub",
        "push_to_hub_model_id",
        "push_to_hub_organization",
        "push_to_hub_token",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_always_push",
        "hub_revision",
    ),
    # the launch
    "every rank has the whole model and a share of the batch: leave it out": (
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "fsdp_min_num_params",
        "fsdp_transformer_layer_cls_to_wrap",
        "parallelism_config",
        "accelerator_config",
        "tp_size",
        "mp_parameters",
    ),
    "the engine shares the gradients by itself, without DistributedDataParallel: leave it out": (
        "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers",
        "ddp_static_graph",
        "ddp_timeout",
    ),
    "mpirun tells each rank its number: leave it out": ("local_rank",),
    "it is called ddp_backend: write that": ("xpu_backend",),
    "a recipe is one training, not a search over many: leave it out": ("ray_scope",),
}

REFUSED: Mapping[str, str] = {
    name: reason for reason, names in _BY_REASON.items() for name in names
}
