"""DeepSpeed's configuration keys: what each takes, its other spellings, and what the suite does with it.

Read from DeepSpeed 0.19.8 (runtime/config.py, runtime/constants.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/precision_config.py); tests/unit/test_configs_installed.py compares the tables
with the installed release.
"""

# zero_optimization, by the kind of value. All that is here is passed on.
ZERO_WHOLE = {  # key -> lowest value
    "allgather_bucket_size": 0,
    "reduce_bucket_size": 1,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_model_persistence_threshold": 0,
    "stage3_module_granularity_threshold": 0,
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "sub_group_size": 0,
    "zero_hpz_partition_size": 0,
    "mics_shard_size": -1,  # before 0.19.8
}
ZERO_SWITCHES = frozenset(
    {
        "allgather_partitions",
        "compute_grad_norm",
        "contiguous_gradients",
        "enable_sanity_checks",
        "ignore_unused_parameters",
        "memory_efficient_linear",
        "mics_hierarchical_params_gather",  # before 0.19.8
        "overlap_comm",
        "override_module_apply",
        "parameter_alignment",
        "reduce_scatter",
        "round_robin_gradients",
        "stage3_allgather_sequential",
        "stage3_use_all_reduce_for_fetch_params",
        "use_multi_rank_bucket_allreduce",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_weights",
    }
)
# Sections that are passed on, with their keys; zeropp_loco_param is of before 0.19.8.
ZERO_SECTIONS = {"leaf_module": ("classes", "names", "name_suffixes"), "zeropp_loco_param": ("err_beta", "reset_T")}
_CHECKPOINT = "the suite writes and reads no checkpoint"
ZERO_NO_FIGURE = {
    "elastic_checkpoint": _CHECKPOINT,
    "legacy_stage1": "there is one implementation of stage 1",
    "load_from_fp32_weights": _CHECKPOINT,
    "log_trace_cache_warnings": "the suite sets it itself at stage 3",
    "pipeline_loading_checkpoint": _CHECKPOINT,
    "save_muon_momentum_buffer_in_memory": "the suite's optimizer is AdamW",
    "stage3_gather_16bit_weights_on_model_save": _CHECKPOINT,
}
# Field names that DeepSpeed accepts beside the alias that its documents use.
ZERO_ALIASES = {
    name: f"stage3_{name}"
    for name in (
        "allgather_sequential",
        "gather_16bit_weights_on_model_save",
        "max_live_parameters",
        "max_reuse_distance",
        "model_persistence_threshold",
        "module_granularity_threshold",
        "param_persistence_threshold",
        "prefetch_bucket_size",
        "use_all_reduce_for_fetch_params",
    )
} | {"stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save"}
# Switches of before the offload sections. 0.19.8 knows cpu_offload_param, older releases cpu_offload_params.
ZERO_CPU_OFFLOAD = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "cpu_offload_params": "offload_param",
}
ZERO_PINNED = "cpu_offload_use_pin_memory"
ZERO_OFFLOAD = frozenset({"offload_optimizer", "offload_param"})

OFFLOAD_DEVICES = ("none", "cpu", "nvme")
OFFLOAD_WHOLE = {"offload_optimizer": {"buffer_count"}, "offload_param": {"buffer_count", "buffer_size", "max_in_cpu"}}
OFFLOAD_SWITCHES = {
    "offload_optimizer": {"pin_memory", "pipeline_read", "pipeline_write", "fast_init", "super_offload"},
    "offload_param": {"pin_memory"},
}
OFFLOAD_FRACTIONS: dict[str, set[str]] = {"offload_optimizer": {"ratio", "cpuadam_cores_perc"}, "offload_param": set()}

ZERO_KEYS = frozenset(
    ZERO_WHOLE.keys()
    | ZERO_SWITCHES
    | ZERO_SECTIONS.keys()
    | ZERO_NO_FIGURE.keys()
    | ZERO_ALIASES.keys()
    | ZERO_CPU_OFFLOAD.keys()
    | ZERO_OFFLOAD
    | {"stage", "zenflow", ZERO_PINNED}
)

# Top level. What transformers resolves from the size of the model.
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SECTIONS = ("zero_optimization", "fp16", "bf16", "bfloat16", "optimizer", "scheduler")
# Passed on as they are: they change training, memory or traffic.
PASSED_ON = frozenset(
    {
        "aio",
        "communication_data_type",
        "data_types",
        "gradient_predivide_factor",
        "prescale_gradients",
        "sparse_gradients",
    }
)
# What is set aside, with the reason.
_LOG = "what is logged changes no figure"
_MONITOR = "monitors change no figure"
_CLOCK = "the suite has its own clock and its own counts"
_UNREAD = "DeepSpeed reads no such key"
NO_FIGURE = {
    "allgather_size": "DeepSpeed reads it with zero_optimization: true alone",
    "autotuning": "the suite does not run DeepSpeed's autotuner",
    "checkpoint": _CHECKPOINT,
    "comet": _MONITOR,
    "comms_config": _UNREAD,
    "comms_logger": f"{_CLOCK}; the logger waits for the device after every call",
    "csv_monitor": _MONITOR,
    "dataloader_drop_last": "the suite hands DeepSpeed no data set",
    "datastates_ckpt": _CHECKPOINT,
    "disable_allgather": "no engine of DeepSpeed reads it",
    "disable_python_gc": "the suite leaves Python's garbage collector as it is",
    "dump_state": _LOG,
    "flops_profiler": f"{_CLOCK}; the profiler would slow the step that it measures",
    "log_level": _LOG,
    "memory_breakdown": _LOG,
    "monitor_config": _UNREAD,
    "seq_parallel_communication_data_type": "DeepSpeed reads it with sequence parallelism alone",
    "steps_per_print": _LOG,
    "tensorboard": _MONITOR,
    "timers": _CLOCK,
    "use_data_before_expert_parallelism": "a cell has no expert parallelism",
    "vocabulary_size": "DeepSpeed only warns of it; the model's own is used",
    "wall_clock_breakdown": f"{_CLOCK}; the breakdown waits for the device",
    "wandb": _MONITOR,
    "writer": _CHECKPOINT,
    "zero_allow_untested_optimizer": "the suite sets it itself, for torch AdamW",
    "zero_force_ds_cpu_optimizer": "the suite sets it itself, to step torch AdamW on the CPU too",
}
# Features that would train something else than the suite can; harmless while they are off.
UNSUPPORTED = {
    "amp": "apex AMP (use bf16 or fp16)",
    "compile": "DeepCompile",
    "compression_training": "compression during training",
    "curriculum_learning": "curriculum learning",
    "data_efficiency": "data efficiency (curriculum sampling, random-LTD)",
    "eigenvalue": "mixture of quantization",
    "elasticity": "elastic training",
    "expert_parallel": "expert parallelism",
    "fp8": "fp8",
    "graph_harvesting": "graph harvesting",
    "hybrid_engine": "the hybrid engine of RLHF",
    "inference": "an inference engine",
    "msamp": "MS-AMP (fp8)",
    "nebula": "Nebula checkpoints",
    "progressive_layer_drop": "progressive layer dropping",
    "quantize_training": "mixture of quantization",
    "random_ltd": "random-LTD",
    "sequence_parallel": "sequence parallelism",
    "sequence_parallel_size": "sequence parallelism",
    "sparse_attention": "sparse attention",
    "tensor_parallel": "tensor parallelism (AutoTP)",
    "torch_autocast": "torch autocast in place of bf16 and fp16",
    "weight_quantization": "quantized weights",
}
OTHERS = frozenset(
    {
        "activation_checkpointing",
        "gradient_allreduce_op",
        "gradient_clipping",
        "managed_gradient_accumulation",
        "pipeline",
    }
)
TOP_LEVEL = frozenset(BATCH) | frozenset(SECTIONS) | PASSED_ON | NO_FIGURE.keys() | UNSUPPORTED.keys() | OTHERS

# Sections of other releases that 0.19.8 refuses even where they are off (runtime/config.py).
REMOVED_SINCE = (0, 19, 8)
REMOVED = frozenset(
    {
        "amp",
        "compression_training",
        "curriculum_learning",
        "eigenvalue",
        "elasticity",
        "graph_harvesting",
        "nebula",
        "progressive_layer_drop",
        "quantize_training",
        "sparse_attention",
        "sparse_gradients",
    }
)

FP16_KEYS = frozenset(
    {
        "auto_cast",
        "consecutive_hysteresis",
        "enabled",
        "fp16_master_weights_and_grads",
        "hysteresis",
        "initial_scale_power",
        "loss_scale",
        "loss_scale_window",
        "min_loss_scale",
    }
)
BF16_KEYS = frozenset(
    {
        "bf16_master_weights_and_grads",
        "bf16_optimizer_states",
        "check_grad_overflow",
        "enabled",
        "immediate_grad_update",
    }
)
