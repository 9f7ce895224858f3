"""Keys of DeepSpeed's configuration that are not obeyed: those that may stand there, and those that may not.

Those that are obeyed are in `_config`. docs/deepspeed.md has all.
"""

_ITSELF = "rueda decides by itself what travels together and when"
_ZERO3 = "rueda decides by itself which parameters are gathered when"
_IO = "rueda reads and writes as it sees fit"

# Path: why it has no meaning here. They are listed once, on rank 0.
IGNORED = {
    **dict.fromkeys(
        (
            "zero_optimization.contiguous_gradients",
            "zero_optimization.reduce_scatter",
            "zero_optimization.reduce_bucket_size",
            "zero_optimization.use_multi_rank_bucket_allreduce",
            "zero_optimization.allgather_partitions",
            "zero_optimization.allgather_bucket_size",
            "zero_optimization.overlap_comm",
            "zero_optimization.round_robin_gradients",
            "zero_optimization.sub_group_size",
            "zero_optimization.parameter_alignment",
        ),
        _ITSELF,
    ),
    **dict.fromkeys(
        (
            "zero_optimization.stage3_prefetch_bucket_size",
            "zero_optimization.stage3_param_persistence_threshold",
            "zero_optimization.stage3_model_persistence_threshold",
            "zero_optimization.stage3_max_live_parameters",
            "zero_optimization.stage3_max_reuse_distance",
            "zero_optimization.stage3_module_granularity_threshold",
            "zero_optimization.stage3_use_all_reduce_for_fetch_params",
            "zero_optimization.stage3_allgather_sequential",
            "zero_optimization.prefetch_bucket_size",
            "zero_optimization.param_persistence_threshold",
            "zero_optimization.model_persistence_threshold",
            "zero_optimization.max_live_parameters",
            "zero_optimization.max_reuse_distance",
            "zero_optimization.memory_efficient_linear",
            "zero_optimization.log_trace_cache_warnings",
        ),
        _ZERO3,
    ),
    **dict.fromkeys(
        (
            *(
                f"zero_optimization.offload_{what}.{key}"
                for what in ("optimizer", "param")
                for key in ("pin_memory", "buffer_count", "buffer_size", "max_in_cpu")
            ),
            "zero_optimization.offload_optimizer.pipeline_read",
            "zero_optimization.offload_optimizer.pipeline_write",
            "zero_optimization.offload_optimizer.fast_init",
            "zero_optimization.offload_optimizer.cpuadam_cores_perc",
            "aio.block_size",
            "aio.queue_depth",
            "aio.thread_count",
            "aio.intra_op_parallelism",
            "aio.single_submit",
            "aio.overlap_events",
            "aio.use_gds",
        ),
        _IO,
    ),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "checkpoints always have whole weights",
    "zero_optimization.gather_16bit_weights_on_model_save": "checkpoints always have whole weights",
    "zero_optimization.elastic_checkpoint": "checkpoints always load on other numbers of ranks",
    "zero_optimization.load_from_fp32_weights": "checkpoints always have float32 weights",
    "zero_optimization.pipeline_loading_checkpoint": "checkpoints are read as a whole",
    "zero_allow_untested_optimizer": "rueda tries optimizers itself and refuses those that cannot be cut",
    "zero_force_ds_cpu_optimizer": "rueda has PyTorch's optimizers",
    "bf16.immediate_grad_update": _ITSELF,
    "disable_allgather": _ITSELF,
    "log_level": "RUEDA_LOG_LEVEL is rueda's",
    "memory_breakdown": "hvd.memory_report() tells more",
    "dump_state": "print what you have given",
}

_MONITOR = "log from the script on rank 0"
_QUANTIZED = "rueda moves what it shards in its own type; leave it out"

# Path: what to do instead. False, null, {"enabled": false} and what else says "not this" are let pass.
REFUSED = {
    "activation_checkpointing": "use hvd.checkpoint(module) in the model",
    "amp": "use fp16 or bf16",
    "autotuning": "choose the values yourself",
    "checkpoint.load_universal": "engine.load_checkpoint() loads on any number of ranks; leave it out",
    "checkpoint.use_node_local_storage": "give save_checkpoint() a folder that all ranks see",
    "checkpoint.parallel_write": "rank 0 writes; leave it out",
    "comms_logger": "use ruedarun --summary and --timeline-filename",
    "comet": _MONITOR,
    "compile": "call torch.compile in the script",
    "compression_training": "compress the model in the script",
    "csv_monitor": _MONITOR,
    "curriculum_learning": "choose samples in the script's data set",
    "data_efficiency": "choose samples in the script's data set",
    "data_types": "gradients are float32 here; leave it out",
    "elasticity": "use rueda.torch.elastic",
    "eigenvalue": "compute it in the script",
    "flops_profiler": "use torch.profiler",
    "fp16.fp16_master_weights_and_grads": "master weights are float32; leave it out",
    "bf16.bf16_master_weights_and_grads": "master weights are float32; leave it out",
    "bf16.bf16_optimizer_states": "the state is float32; leave it out",
    "hybrid_engine": "it is for inference beside training, which rueda has not",
    "managed_gradient_accumulation": "the engine counts the passes; leave it out",
    "monitor_config": _MONITOR,
    "nebula": "engine.save_checkpoint() writes to a folder",
    "pipeline": "rueda has no pipeline parallelism",
    "progressive_layer_drop": "drop layers in the model",
    "quantize_training": "quantize in the model",
    "seq_parallel_communication_data_type": "use rueda.attention",
    "sequence_parallel_size": "use rueda.attention",
    "sparse_attention": "use rueda.attention.ring_block_sparse_attention",
    "tensor_parallel": "rueda has no tensor parallelism; torch.distributed.tensor runs on rueda",
    "tensorboard": _MONITOR,
    "timers": "use wall_clock_breakdown",
    "torch_autocast": "use fp16 or bf16, or torch.autocast in the script",
    "use_data_before_expert_parallelism": "rueda has no expert parallelism",
    "vocabulary_size": "leave it out",
    "wandb": _MONITOR,
    "weight_quantization": "quantize in the model",
    "zenflow": "leave it out",
    "zero_optimization.cpu_offload": "write offload_optimizer: {\"device\": \"cpu\"}",
    "zero_optimization.cpu_offload_param": "write offload_param: {\"device\": \"cpu\"}",
    "zero_optimization.cpu_offload_use_pin_memory": "leave it out",
    "zero_optimization.enable_sanity_checks": "use hvd.check_replicas(model) in the script",
    "zero_optimization.leaf_module": "leave it out",
    "zero_optimization.mics_shard_size": "use a process set with hvd.DistributedOptimizer(shard=...)",
    "zero_optimization.mics_hierarchical_params_gather": "leave it out",
    "zero_optimization.offload_optimizer.super_offload": "leave it out",
    "zero_optimization.save_muon_momentum_buffer_in_memory": "leave it out",
    "zero_optimization.zenflow": "leave it out",
    "zero_optimization.zero_quantized_gradients": _QUANTIZED,
    "zero_optimization.zero_quantized_nontrainable_weights": _QUANTIZED,
    "zero_optimization.zero_quantized_weights": _QUANTIZED,
}
# What these say when they say nothing.
NEUTRAL = {
    "zero_optimization.mics_shard_size": (-1,),
    "managed_gradient_accumulation": (True,),
    "compile": ({},),
}
