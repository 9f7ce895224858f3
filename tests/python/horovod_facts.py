"""Horovod 0.28 as facts: names, parameters, defaults, variables, and fragments of its errors.

Data only. What a name of rueda has besides stands after Horovod's parameters and has a default.
"""

# Defaults are spelled as repr(), but SET: the global process set, NONE: Compression.none.
_SCALES = "prescale_factor=1.0, postscale_factor=1.0"
_REDUCE = f"average=None, name=None, op=None, {_SCALES}, process_set=SET"
_REDUCE_SYNC = f"average=None, name=None, compression=NONE, op=None, {_SCALES}, process_set=SET"
_SCATTER = f"name=None, op=0, process_set=SET, {_SCALES}"
_SCATTER_SYNC = f"name=None, compression=NONE, op=0, process_set=SET, {_SCALES}"
_GATHER = "name=None, process_set=SET"

_LIFE = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    "rank": "",
    "size": "",
    "local_rank": "",
    "local_size": "",
    "cross_rank": "",
    "cross_size": "",
    "mpi_threads_supported": "",
    "mpi_enabled": "",
    "mpi_built": "",
    "gloo_enabled": "",
    "gloo_built": "",
    "nccl_built": "",
    "ddl_built": "",
    "ccl_built": "",
    "cuda_built": "",
    "rocm_built": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
}
_OPERATIONS = {
    "allreduce": f"tensor, {_REDUCE_SYNC}",
    "allreduce_": f"tensor, {_REDUCE}",
    "allreduce_async": f"tensor, {_REDUCE}",
    "allreduce_async_": f"tensor, {_REDUCE}",
    "grouped_allreduce": f"tensors, {_REDUCE_SYNC}",
    "grouped_allreduce_": f"tensors, {_REDUCE}",
    "grouped_allreduce_async": f"tensors, {_REDUCE}",
    "grouped_allreduce_async_": f"tensors, {_REDUCE}",
    "sparse_allreduce_async": "tensor, name, op, process_set=SET",
    "allgather": f"tensor, {_GATHER}",
    "allgather_async": f"tensor, {_GATHER}",
    "grouped_allgather": f"tensors, {_GATHER}",
    "grouped_allgather_async": f"tensors, {_GATHER}",
    "broadcast": f"tensor, root_rank, {_GATHER}",
    "broadcast_": f"tensor, root_rank, {_GATHER}",
    "broadcast_async": f"tensor, root_rank, {_GATHER}",
    "broadcast_async_": f"tensor, root_rank, {_GATHER}",
    "alltoall": f"tensor, splits=None, {_GATHER}",
    "alltoall_async": f"tensor, splits=None, {_GATHER}",
    "reducescatter": f"tensor, {_SCATTER_SYNC}",
    "reducescatter_async": f"tensor, {_SCATTER}",
    "grouped_reducescatter": f"tensors, {_SCATTER_SYNC}",
    "grouped_reducescatter_async": f"tensors, {_SCATTER}",
    "join": "device=-1",
    "barrier": "process_set=SET",
    "poll": "handle",
    "synchronize": "handle",
}
_STATE = {
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=SET",
    "allgather_object": "obj, name=None",
}
_OPTIMIZER = {
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=NONE, "
    "backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
    "sparse_as_dense=False, process_set=SET",
}
_NORM = {
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, "
    "track_running_stats=True",
}
_SETS = {
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
}
_VERBOSE = "verbose=False"

# Of modules that need Ray or Spark.
_RAY_EXECUTOR = (
    "settings, num_workers=None, num_hosts=None, num_workers_per_host=1, cpus_per_worker=1, use_gpu=False, "
    "gpus_per_worker=None, use_current_placement_group=True, min_workers=None, max_workers=None, reset_limit=None, "
    "cooldown_range=None, elastic_timeout=600, override_discovery=True"
)
ENGINES = {
    "horovod.ray.RayExecutor": _RAY_EXECUTOR,
    "horovod.ray.RayExecutor.create_settings": "timeout_s=30, ssh_identity_file=None, ssh_str=None, "
    "placement_group_timeout_s=100, nics=None",
    "horovod.ray.RayExecutor.start": "self, executable_cls=None, executable_args=None, executable_kwargs=None, "
    "extra_env_vars=None",
    "horovod.ray.RayExecutor.run": "self, fn, args=None, kwargs=None, callbacks=None",
    "horovod.ray.RayExecutor.run_remote": "self, fn, args=None, kwargs=None, callbacks=None",
    "horovod.ray.RayExecutor.execute": "self, fn, callbacks=None",
    "horovod.ray.RayExecutor.execute_single": "self, fn",
    "horovod.ray.RayExecutor.shutdown": "self",
    "horovod.ray.BaseHorovodWorker": "world_rank=0, world_size=1",
    "horovod.ray.ElasticRayExecutor": "settings, use_gpu=False, cpus_per_slot=1, gpus_per_slot=None, env_vars=None, "
    "override_discovery=True",
    "horovod.ray.ElasticRayExecutor.run": "self, worker_fn, callbacks=None",
    "horovod.ray.ElasticRayExecutor.create_settings": "min_num_proc=1, max_num_proc=None, reset_limit=None, "
    "elastic_timeout=600, timeout_s=30, ssh_identity_file=None, nics=None, min_np=None, max_np=None, kwargs",
    "horovod.ray.RayHostDiscovery": "use_gpu=False, cpus_per_slot=1, gpus_per_slot=1",
    "horovod.ray.elastic.RayHostDiscovery": "use_gpu=False, cpus_per_slot=1, gpus_per_slot=1",
    "horovod.ray.elastic_v2.RayHostDiscovery": "use_gpu=False, cpus_per_worker=1, gpus_per_worker=1",
    "horovod.ray.runner.MiniSettings": "nics=None, verbose=1, key, ssh_port=None, ssh_identity_file=None, "
    "timeout_s=300, placement_group_timeout_s=100, elastic=False",
    "horovod.spark.run": "fn, args=(), kwargs=None, num_proc=None, start_timeout=None, use_mpi=None, use_gloo=None, "
    "extra_mpi_args=None, env=None, stdout=None, stderr=None, verbose=1, nics=None, "
    "prefix_output_with_timestamp=False, executable=None",
}

# module -> name -> parameters. None: the name is there, and is no function with parameters to keep.
SIGNATURES = {
    "horovod": {"run": None, "__version__": None},
    "horovod.torch": {
        **_LIFE,
        **_OPERATIONS,
        **_STATE,
        **_OPTIMIZER,
        **_NORM,
        **_SETS,
        **dict.fromkeys(("Average", "Sum", "Adasum", "Min", "Max", "Product")),
        "Compression": None,
        "HorovodInternalError": None,
        "global_process_set": None,
        "elastic": None,
        "_check_has_gpu": "",
    },
    "horovod.torch.mpi_ops": {
        **_LIFE,
        **_OPERATIONS,
        "is_homogeneous": "",
        "handle_average_backwards_compatibility": "op, average",
        "_basics": None,
        "HorovodInternalError": None,
    },
    "horovod.torch.compression": {"Compression": None, "Compressor": None, "NoneCompressor": None,
                                  "FP16Compressor": None},
    "horovod.torch.functions": _STATE,
    "horovod.torch.optimizer": _OPTIMIZER,
    "horovod.torch.sync_batch_norm": _NORM,
    "horovod.torch.elastic": {"run": "func", "run_fn": "func, reset", "reset": "", "init": None, "shutdown": None,
                              "TorchState": None,
                              "ElasticSampler": "dataset, shuffle=True, seed=0"},
    "horovod.torch.elastic.state": {"TorchState": None, "get_handler_registry": "",
                                    "set_handler_registry": "registry", "StateHandler": "value",
                                    "ModelStateHandler": None, "OptimizerStateHandler": None,
                                    "LRSchedulerStateHandler": None, "SamplerStateHandler": None},
    "horovod.torch.elastic.sampler": {"ElasticSampler": "dataset, shuffle=True, seed=0"},
    "horovod.common.basics": {"HorovodBasics": None},
    "horovod.common.process_sets": {**_SETS, "global_process_set": None},
    "horovod.common.exceptions": {"HorovodInternalError": None, "HostsUpdatedInterrupt": None,
                                  "HorovodVersionMismatchError": None},
    "horovod.common.elastic": {"State": None, "ObjectState": None, "run_fn": "func, reset",
                               "notification_manager": None,
                               **dict.fromkeys(("HorovodInternalError", "HostsUpdatedInterrupt", "HostUpdateResult",
                                                "WorkerNotificationManager"))},
    "horovod.runner.elastic.worker": {
        "HostUpdateResult": None,
        "HostsUpdatedRequest": None,
        "WorkerNotificationManager": "",
        **dict.fromkeys(("HOROVOD_HOSTNAME", "HOROVOD_LOCAL_RANK", "HOROVOD_GLOO_IFACE",
                         "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")),
    },
    "horovod.common.util": {
        "extension_available": f"ext_base_name, {_VERBOSE}",
        "gpu_available": f"ext_base_name, {_VERBOSE}",
        **dict.fromkeys(
            ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built"), _VERBOSE
        ),
        "env": None,
        "split_list": None,
        "num_rank_is_power_2": "num_rank",
        "is_version_greater_equal_than": "ver, target",
        "check_installed_version": "name, version, exception=None",
        "support_non_legacy_keras_optimizers": "k",
        "_cache": None,
    },
    "horovod.runner": {"run": None},
    "horovod.runner.launch": {"run_commandline": None, "parse_args": None},
}  # fmt: skip

_TF_REDUCE = f"average=None, device_dense='', device_sparse='', compression=NONE, op=None, {_SCALES}"
_TF_NAME = "name=None, ignore_name_scope=False, process_set=SET"
_TF_TAPE = (
    "gradtape, device_dense='', device_sparse='', compression=NONE, sparse_as_dense=False, op=0, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=SET"
)
_TF_OPERATIONS = {
    "allgather": f"tensor, {_TF_NAME}",
    "grouped_allgather": f"tensors, {_TF_NAME}",
    "broadcast": f"tensor, root_rank, {_TF_NAME}",
    "broadcast_": "variables, root_rank, name=None, process_set=SET",
    "alltoall": f"tensor, splits=None, {_TF_NAME}",
    "join": "",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "size_op": "process_set_id=0, name=None",
    "local_size_op": "name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "is_homogeneous": "",
    "handle_average_backwards_compatibility": "op, average",
    "check_num_rank_power_of_2": "num_rank",
    **_SETS,
    **dict.fromkeys(("Average", "Sum", "Adasum", "Min", "Max", "Product", "global_process_set")),
}
_TF_STATE = {
    "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=SET",
    "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=SET",
    "allgather_object": "obj, session=None, name=None, process_set=SET",
    "broadcast_variables": "variables, root_rank, process_set=SET, inplace=False",
}
_TF_UTIL = {"_executing_eagerly": "", "_make_subgraph": "f", "_cache": None, "vars_to_refs": "vars", "refs_to_vars": "refs"}
_KERAS_OPTIMIZER = (
    "optimizer, name=None, device_dense='', device_sparse='', compression=NONE, sparse_as_dense=False, "
    "gradient_predivide_factor=1.0, op=0, backward_passes_per_step=1, average_aggregated_gradients=False, "
    "num_groups=0, groups=None, process_set=SET"
)
_KERAS = {
    **_LIFE,
    **_SETS,
    **dict.fromkeys(("Average", "Sum", "Compression", "global_process_set", "callbacks", "elastic")),
    "DistributedOptimizer": f"{_KERAS_OPTIMIZER}, scale_local_gradients=True",
    "PartialDistributedOptimizer": f"{_KERAS_OPTIMIZER}, local_layers=None, scale_local_gradients=True",
    "broadcast_global_variables": "root_rank",
    "allreduce": f"value, name=None, average=None, {_SCALES}, op=None, compression=NONE",
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=0",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=NONE",
}
_KERAS_CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "MetricAverageCallback": "device=''",
    "LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
    "momentum_correction=True, steps_per_epoch=None",
    "LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0",
    "BestModelCheckpoint": "monitor='val_loss', verbose=0, mode='auto', save_freq='epoch'",
}
_KERAS_ELASTIC = {
    "run": "func",
    "KerasState": "model, optimizer=None",
    "CommitStateCallback": "state, batches_per_commit=1",
    "UpdateBatchStateCallback": "state",
    "UpdateEpochStateCallback": "state",
}

# The same of TensorFlow's modules and Keras's.
FRAMEWORKS = {
    "horovod.tensorflow": {
        **_LIFE,
        **_TF_OPERATIONS,
        **_TF_STATE,
        "allreduce": f"tensor, {_TF_REDUCE}, name=None, process_set=SET, ignore_name_scope=False",
        "grouped_allreduce": f"tensors, {_TF_REDUCE}, process_set=SET, ignore_name_scope=False, name=None",
        "reducescatter": f"tensor, device_dense='', compression=NONE, op=0, name=None, process_set=SET, ignore_name_scope=False, {_SCALES}",
        "grouped_reducescatter": f"tensors, device_dense='', compression=NONE, op=0, process_set=SET, {_SCALES}",
        "broadcast_global_variables": "root_rank",
        "BroadcastGlobalVariablesHook": "root_rank, device=''",
        "DistributedGradientTape": f"{_TF_TAPE}, scale_local_gradients=True",
        "PartialDistributedGradientTape": f"{_TF_TAPE}, local_layers=None, scale_local_gradients=True",
        "DistributedOptimizer": "optimizer, name=None, use_locking=False, device_dense='', device_sparse='', compression=NONE, "
        "sparse_as_dense=False, backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, "
        "average_aggregated_gradients=False, num_groups=0, groups=None, process_set=SET, scale_local_gradients=True",
        "SyncBatchNormalization": "fused=False",
        "check_extension": None,
        "gpu_available": f"ext_base_name, {_VERBOSE}",
        "split_list": None,
        "elastic": None,
        "Compression": None,
    },
    "horovod.tensorflow.mpi_ops": {**_LIFE, **_TF_OPERATIONS, "_basics": None},
    "horovod.tensorflow.functions": _TF_STATE,
    "horovod.tensorflow.compression": {"Compression": None, "FP16Compressor": None, "NoneCompressor": None},
    "horovod.tensorflow.sync_batch_norm": {"SyncBatchNormalization": None},
    "horovod.tensorflow.util": _TF_UTIL,
    "horovod.tensorflow.elastic": {
        "run": "func",
        "TensorFlowState": "variables=None, session=None",
        "TensorFlowKerasState": "model, optimizer=None, backend=None",
    },
    "horovod.tensorflow.keras": _KERAS,
    "horovod.keras": _KERAS,
    **dict.fromkeys(("horovod.tensorflow.keras.callbacks", "horovod.keras.callbacks"), _KERAS_CALLBACKS),
    **dict.fromkeys(("horovod.tensorflow.keras.elastic", "horovod.keras.elastic"), _KERAS_ELASTIC),
}  # fmt: skip

# Methods and attributes that scripts use: of what DistributedOptimizer returns, and of process sets.
OPTIMIZER_METHODS = {
    "synchronize": "",
    "skip_synchronize": "",
    "step": "closure=None",
    "set_backward_passes_per_step": "passes",
    "zero_grad": None,
    "load_state_dict": None,
}
PROCESS_SET_ATTRIBUTES = (
    "process_set_id", "ranks", "mpi_comm", "size", "rank", "included",
)  # fmt: skip

# horovod.run: parameters and defaults.
# What a state of elastic jobs has; all other names are the script's, which makes attributes of its keywords.
STATE_METHODS = {
    **dict.fromkeys(("commit", "check_host_updates", "save", "restore", "sync", "reset", "on_reset"), "self"),
    "register_reset_callbacks": "self, callbacks",
    "on_hosts_updated": "self, timestamp, update_res",
}
NOTIFICATION_METHODS = {
    "init": None,
    "register_listener": "self, listener",
    "remove_listener": "self, listener",
    "handle_hosts_updated": "self, timestamp, update_res",
}
RUN = (
    "func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, "
    "reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, "
    "host_discovery_script=None, start_timeout=None, ssh_port=None, ssh_identity_file=None, "
    "disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None, "
    "mpi_args=None, network_interface=None, network_interfaces=None, executable=None, np=None, "
    "min_np=None, max_np=None"
)

# Fragments of errors. condition -> (class, fragment); classes are those a script catches.
DISAGREEMENTS = {  # one rank calls otherwise; every rank raises
    "dtype": ("HorovodInternalError", "Mismatched data types"),
    "shape of allreduce": ("HorovodInternalError", "Mismatched ALLREDUCE tensor shapes"),
    "shape of broadcast": ("HorovodInternalError", "Mismatched BROADCAST tensor shapes"),
    "shape of reducescatter": ("HorovodInternalError", "Mismatched REDUCESCATTER tensor shapes"),
    "columns of allgather": ("HorovodInternalError", "Mismatched ALLGATHER tensor shapes"),
    "columns of alltoall": ("HorovodInternalError", "Mismatched ALLTOALL tensor shapes"),
    "scale": ("HorovodInternalError", "Mismatched prescale and/or postscale factors"),
    "reduction": ("HorovodInternalError", "Mismatched reduction operation"),
    "root": ("HorovodInternalError", "Mismatched BROADCAST root ranks"),
}
WRONG_CALLS = {  # this rank raises; the others notice nothing
    "scalar to allgather": ("HorovodInternalError", "rank-zero tensor"),
    "scalar to alltoall": ("HorovodInternalError", "rank-zero tensor"),
    "scalar to reducescatter": ("ValueError", "does not support scalar inputs"),
    "root not in set": ("ValueError", "invalid root rank"),
    "uneven alltoall": ("ValueError", ""),
    "splits too large": ("ValueError", ""),
    "splits too many": ("ValueError", ""),
    "splits not int32": ("ValueError", ""),
    "splits not 1-D": ("ValueError", ""),
    "reducescatter op": ("HorovodInternalError", "only supports AVERAGE and SUM"),
    "dtype unsupported": ("ValueError", "is not supported."),
    "not contiguous in place": ("ValueError", "required to be contiguous"),
    "op and average": ("ValueError", ""),
    "poll of an unknown handle": ("ValueError", ""),
    "broadcast_parameters of a generator": ("ValueError", ""),
    "LBFGS state": ("ValueError", ""),
    "predivide without average": ("ValueError", ""),
    "no passes": ("ValueError", ""),
    "names twice": ("ValueError", ""),
    "names missing": ("ValueError", ""),
    "names without parameters": ("ValueError", ""),
    "groups of the wrong type": ("ValueError", ""),
    "unknown set": ("ValueError", "does not exist"),
}
OPTIMIZER_ERRORS = {
    "backward too often": ("AssertionError", "more than backward_passes_per_step times"),
    "zero_grad too early": ("AssertionError", "zero_grad() was called after loss.backward()"),
}
# With process sets other than the global one. Two things that Horovod refuses are possible here:
# adding a set without HOROVOD_DYNAMIC_PROCESS_SETS, and every collective while a rank has joined.
SETS = {
    "not a member": ("ValueError", "is not a member of the provided process set"),
    "rank of another set": ("ValueError", ""),
}
OUTSIDE = {  # the runtime is not there
    "rank before init": ("ValueError", "Horovod has not been initialized; use hvd.init()."),
    "operation before init": ("HorovodInternalError", "has not been initialized"),
    "operation after shutdown": ("HorovodInternalError", "has been shut down"),
    "timeline before init": ("ValueError", ""),
}

# Section by section, every variable that Horovod's documentation and sources name.
VARIABLES = """
    HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME HOROVOD_CACHE_CAPACITY
    HOROVOD_HIERARCHICAL_ALLREDUCE HOROVOD_HIERARCHICAL_ALLGATHER HOROVOD_TORUS_ALLREDUCE
    HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_NUM_NCCL_STREAMS HOROVOD_ENABLE_ASYNC_COMPLETION
    HOROVOD_ENABLE_XLA_OPS HOROVOD_DISABLE_GROUP_FUSION HOROVOD_DYNAMIC_PROCESS_SETS
    HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES HOROVOD_DISABLE_NVTX_RANGES
    HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS
    HOROVOD_STALL_SHUTDOWN_TIME_SECONDS HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG
    HOROVOD_AUTOTUNE_WARMUP_SAMPLES HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE
    HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE
    HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_MPI_THREADS_DISABLE
    HOROVOD_ADASUM_MPI_CHUNK_SIZE HOROVOD_CCL_CACHE HOROVOD_THREAD_AFFINITY HOROVOD_GLOO_IFACE
    HOROVOD_GLOO_TIMEOUT_SECONDS HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT
    HOROVOD_HOSTNAME HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE
    HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE HOROVOD_ELASTIC HOROVOD_LOG_LEVEL HOROVOD_LOG_HIDE_TIME

    HOROVOD_START_TIMEOUT HOROVOD_ELASTIC_TIMEOUT HOROVOD_SPARK_START_TIMEOUT
    HOROVOD_SPARK_PYTHONPATH HOROVOD_SPARK_WORK_DIR HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX
    _HOROVOD_SECRET_KEY OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE
    OMPI_MCA_plm_rsh_agent LSB_JOBID CSM_ALLOCATION_ID DDL_OPTIONS NCCL_SOCKET_IFNAME
    NCCL_IB_DISABLE PYTHONUNBUFFERED

    HOROVOD_MIXED_INSTALL HOROVOD_TEST_GPU CCL_ROOT

    HOROVOD_WITH_TENSORFLOW HOROVOD_WITH_PYTORCH HOROVOD_WITH_MXNET HOROVOD_WITH_MPI
    HOROVOD_WITH_GLOO HOROVOD_WITH_NVTX HOROVOD_WITHOUT_TENSORFLOW HOROVOD_WITHOUT_PYTORCH
    HOROVOD_WITHOUT_MXNET HOROVOD_WITHOUT_MPI HOROVOD_WITHOUT_GLOO HOROVOD_WITHOUT_NVTX
    HOROVOD_GPU HOROVOD_GPU_OPERATIONS HOROVOD_GPU_ALLREDUCE HOROVOD_GPU_ALLGATHER
    HOROVOD_GPU_BROADCAST HOROVOD_GPU_ALLTOALL HOROVOD_GPU_REDUCESCATTER
    HOROVOD_ALLOW_MIXED_GPU_IMPL HOROVOD_NCCL_HOME HOROVOD_NCCL_INCLUDE HOROVOD_NCCL_LIB
    HOROVOD_NCCL_LINK HOROVOD_NVTX_INCLUDE HOROVOD_CUDA_HOME HOROVOD_ROCM_HOME
    HOROVOD_BUILD_CUDA_CC_LIST HOROVOD_BUILD_ARCH_FLAGS HOROVOD_CMAKE HOROVOD_DEBUG
    HOROVOD_SKIP_COMPILE HOROVOD_LOCAL_VERSION MAKEFLAGS
""".split()
