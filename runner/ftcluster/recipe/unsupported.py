"""Arguments of transformers' TrainingArguments that a recipe cannot set, and their alternatives.

The names cover all transformers releases in stacks, and arguments of some other scripts. A test in
tests/engine checks that the active stack's transformers has no other arguments.
"""

from collections.abc import Mapping

PRECISION = "write precision: bf16, fp32 or auto"
NAMES_BY_REASON: Mapping[str, str] = {
    # model and data
    "write the revision after the name, as in google-bert/bert-base-cased@main "
    "(model=NAME@REVISION, data=NAME@REVISION)": "model_revision data_revision revision",
    # the batch
    "batch_size is never changed; if memory is short, raise gradient_accumulation_steps": (
        "auto_find_batch_size"
    ),
    "it was renamed; use per_device_eval_batch_size": "per_gpu_eval_batch_size",
    "group_by_length, which is on by default, has the same purpose; remove it": "sortish_sampler",
    "not needed, because predictions are never kept on an accelerator; remove it": (
        "eval_accumulation_steps"
    ),
    "not needed, because the loss is always averaged over the batch of all ranks; remove it": (
        "average_tokens_across_devices"
    ),
    # losses and batches of sentence-transformers
    "use gradient_accumulation_steps: each rank processes its samples in that many parts, and the "
    "texts of all parts still serve as in-batch negatives": "mini_batch_size",
    "use scale, which is the inverse: 20 for a temperature of 0.05": "temperature",
    "not needed, because in-batch negatives always come from all ranks; remove it": (
        "gather_across_devices"
    ),
    "not needed, because equal texts in a batch are never negatives of each other; remove it": (
        "batch_sampler"
    ),
    "use query_prompt for queries, and text_prompt for all other texts": "prompts",
    # precision and devices
    f"use the recipe's field precision instead; {PRECISION}": "bf16",
    f"evaluation uses the same precision as training; {PRECISION}": "bf16_full_eval fp16_full_eval",
    f"CPUs train in fp32 or bf16; {PRECISION}": (
        "fp16 fp16_opt_level fp16_backend half_precision_backend mixed_precision"
    ),
    "it is for GPUs, and ftcluster trains on CPUs; remove it": (
        "tf32 no_cuda use_cpu use_mps_device tpu_num_cores tpu_metrics_debug "
        "torch_empty_cache_steps use_liger_kernel liger_kernel_config dataloader_pin_memory "
        "n_gpu gpus num_gpus device_map"
    ),
    # model and optimizer
    "models are not compiled; torch's own kernels already use AMX and AVX512; remove it": (
        "torch_compile torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval"
    ),
    "the optimizer is AdamW, and its settings are weight_decay, adam_beta1, adam_beta2 and "
    "adam_epsilon; remove this argument": "adafactor optim_args optim_target_modules",
    "gradient_checkpointing has no options; remove it": (
        "gradient_checkpointing_kwargs activation_checkpointing_kwargs"
    ),
    "noise on embeddings is not implemented; remove it": "neftune_noise_alpha",
    "training and evaluation never use a key-value cache; remove it": "use_cache past_index",
    # data
    "not needed, because samples are tokenized before the ranks start and then read from a "
    "memory-mapped file without worker processes; remove it": (
        "dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_multiprocessing_context dataloader_in_order"
    ),
    "put the files into one folder, as train.csv, validation.csv and so on, and pass --data DIR": (
        "validation_file test_file"
    ),
    "not needed, because the task determines the columns and ftcluster measures the lengths of "
    "samples itself; remove it": ("remove_unused_columns label_names length_column_name"),
    # scripts with PEFT, with callbacks or with other tasks
    "set lora_r, as in `ftcluster train classify lora_r=16`; every task can train adapters": (
        "use_peft peft lora use_lora"
    ),
    "not needed, because a classifier's head is always trained with the adapters and saved in "
    "peft's modules_to_save, and adapters need no task type; remove it": (
        "lora_modules_to_save modules_to_save lora_task_type"
    ),
    "frozen weights are in bf16, or in NF4 as in QLoRA: lora_r=16 load_in_4bit=true; for other "
    "formats write a script: ftcluster run --requirements FILE -- SCRIPT": (
        "qlora load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant use_bnb_nested_quant"
    ),
    "not needed, because the labels determine the number and names of the classes, and a list of "
    "labels in a row means several classes; remove it": "num_labels id2label label2id problem_type",
    "to train a model type from scratch, write model=config:TYPE from_scratch=true": (
        "config_name model_type"
    ),
    # names in axolotl and LLaMA-Factory
    "set lora_r: 16 for adapters, and load_in_4bit: true for QLoRA; without lora_r all weights are "
    "trained": "adapter finetuning_type quantization_bit",
    "not needed, because by default all linear layers except the last get adapters (see "
    "lora_target_modules); remove it": "lora_target_linear",
    "write validation_split_percentage, which is in percent: 5 instead of 0.05": "val_set_size",
    "in sft only answers contribute to the loss, and in clm all tokens do; remove it": (
        "train_on_inputs train_on_input completion_only_loss assistant_only_loss"
    ),
    "name a recipe: sft for conversations, dpo for preferences, clm for plain text": "rl stage",
    "pass a file, a folder or a name on the Hub with --data; its columns are detected": (
        "datasets dataset_dir dataset"
    ),
    "not needed, because samples are padded to the longest sample of their batch anyway; remove "
    "it": "pad_to_sequence_len pad_to_max_length",
    "attention uses ftcluster's kernels; remove it": (
        "flash_attention flash_attn sdp_attention xformers_attention attn_implementation"
    ),
    "write training.eval_strategy or training.save_strategy: epoch, or steps with eval_steps or "
    "save_steps": "evals_per_epoch saves_per_epoch",
    "not needed, because prepared data are kept on the hosts anyway; remove it": (
        "dataset_prepared_path dataset_processes preprocessing_num_workers overwrite_cache"
    ),
    "write report_to: wandb, mlflow, trackio or tensorboard": (
        "use_wandb wandb_project wandb_entity use_mlflow"
    ),
    "embeddings always get rows for new_tokens, and their number is not padded; remove it": (
        "resize_vocab resize_token_embeddings_to_32x"
    ),
    "name the tokens in new_tokens; the rows of all listed tokens are trained beside "
    "adapters": "trainable_token_indices",
    # evaluation
    "a run always trains; set eval_strategy to choose whether it also evaluates": (
        "do_train do_eval do_predict"
    ),
    "evaluations cannot be delayed; choose their times with eval_strategy and eval_steps": (
        "eval_delay"
    ),
    "the task determines the predictions and the metrics, which are computed over all samples at "
    "once (in classification, choose them with the field metrics); remove it": (
        "prediction_loss_only include_for_metrics include_inputs_for_metrics batch_eval_metrics "
        "eval_do_concat_batches eval_use_gather_object use_legacy_prediction_loop"
    ),
    # progress and reports
    "rank 0 always reports the progress, as text or (with --json) as JSON; remove it": (
        "log_level log_level_replica log_on_each_node disable_tqdm"
    ),
    "a loss that is NaN or infinite is always an error; remove it": "logging_nan_inf_filter",
    "tokens are not counted; the speed is reported in samples per second; remove it": (
        "include_num_input_tokens_seen include_tokens_per_second"
    ),
    "reports are written to the run's folder; to choose the tracker, set report_to to tensorboard, "
    "trackio, mlflow or wandb": (
        "project trackio_space_id trackio_bucket_id trackio_static_space_id"
    ),
    "it would have no effect; remove it": "debug skip_memory_metrics",
    # folders and checkpoints
    "each run has its own folder on the head; remove this argument, and copy the trained model "
    "with ftcluster fetch RUN DIR": "output_dir overwrite_output_dir",
    "reports are always written to the folder reports in the run's folder; remove it": (
        "logging_dir"
    ),
    "checkpoints are always complete, in safetensors, and shared by all hosts; remove it": (
        "save_only_model save_on_each_node save_safetensors enable_jit_checkpoint"
    ),
    "a resumed run always continues with the remaining samples, and there are no callbacks; remove "
    "it": ("restore_callback_states_from_checkpoint ignore_data_skip"),
    "the model stays on the cluster; nothing is uploaded to the Hub; remove it": (
        "push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_token "
        "hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision"
    ),
    # the launch
    "every rank computes the whole model on its part of the batch; remove it": (
        "deepspeed fsdp fsdp_config fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap "
        "parallelism_config accelerator_config tp_size mp_parameters"
    ),
    "gradients are averaged without DistributedDataParallel; remove it": (
        "ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph ddp_timeout"
    ),
    "mpirun assigns each rank its number; remove it": "local_rank",
    "a recipe describes one training run; for a hyperparameter search, use ftcluster sweep": (
        "ray_scope"
    ),
}

# training methods that no recipe implements, and their classes in TRL
TRL_TRAINERS: Mapping[str, str] = {
    "bco": "BCOTrainer", "cpo": "CPOTrainer", "gkd": "GKDTrainer", "grpo": "GRPOTrainer",
    "kto": "KTOTrainer", "orpo": "ORPOTrainer", "ppo": "PPOTrainer", "prm": "PRMTrainer",
    "reward": "RewardTrainer", "rlhf": "PPOTrainer", "rloo": "RLOOTrainer", "simpo": "CPOTrainer",
}  # fmt: skip

UNSUPPORTED: Mapping[str, str] = {
    name: reason for reason, names in NAMES_BY_REASON.items() for name in names.split()
}
