"""rueda for PyTorch: Horovod's functions, arguments and errors on CPU tensors.

>>> import rueda.torch as hvd
>>> hvd.init()
>>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
>>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
>>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from rueda.torch import _pytorch  # isort: skip  # first: says what to do without a PyTorch to use

from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError
from rueda.common.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_included,
    remove_process_set,
)
from rueda.common.util import extension_available, gpu_available
from rueda.data import balance
from rueda.torch import checkpoint, elastic, timeline
from rueda.torch._futures import get_future
from rueda.torch.accounting import memory_report
from rueda.torch.activations import measure_activations
from rueda.torch.compression import Compression
from rueda.torch.cuda_memory import cuda_pool
from rueda.torch.data import DistributedSampler, common_steps
from rueda.torch.deepspeed import initialize
from rueda.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from rueda.torch.memory import empty, empty_like, zeros
from rueda.torch.metrics import average_metrics
from rueda.torch.mpi_ops import *  # noqa: F401,F403
from rueda.torch.optimizer import DistributedOptimizer
from rueda.torch.relaxed import AsyncOptimizer, DiLoCo, LocalSGD, register_comm_hook
from rueda.torch.replicas import ReplicasDiffer, check_replicas
from rueda.torch.schedule import LearningRateWarmup
from rueda.torch.sharding import gathered, load_parameters, no_init
from rueda.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm


def _check_has_gpu():
    """Horovod's question to this module; see `gpu_available`."""
    return gpu_available("torch")
