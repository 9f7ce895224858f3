"""rueda for TensorFlow 2: Horovod's functions, eagerly and inside ``tf.function``.

>>> import rueda.tensorflow as hvd
>>> hvd.init()
>>> with tf.GradientTape() as tape:
...     loss = loss_of(model(x), y)
>>> tape = hvd.DistributedGradientTape(tape)
>>> grads = tape.gradient(loss, model.trainable_variables)

Ranks match operations by name, so they may reach independent ones in any order. Errors are
TensorFlow's: FailedPreconditionError where ranks disagree, InvalidArgumentError for a wrong argument
(a ValueError, too, where Python sees it), AbortedError for a lost rank.
"""

from rueda.tensorflow import _tensorflow  # isort: skip  # first: says what to do without a TensorFlow to use

from rueda._waiting import barrier, join
from rueda.common.basics import *  # noqa: F401,F403
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError
from rueda.common.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_included,
    remove_process_set,
)
from rueda.common.util import check_extension, gpu_available, split_list
from rueda.tensorflow import elastic
from rueda.tensorflow.compression import Compression
from rueda.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from rueda.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from rueda.tensorflow.mpi_ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    check_num_rank_power_of_2,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    handle_average_backwards_compatibility,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from rueda.tensorflow.optimizer import DistributedOptimizer


def __getattr__(name):
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module 'rueda.tensorflow' has no attribute {name!r}")
    # Keras comes with it, which programs that do without need not load.
    from rueda.tensorflow.sync_batch_norm import SyncBatchNormalization

    globals()["SyncBatchNormalization"] = SyncBatchNormalization
    return SyncBatchNormalization
