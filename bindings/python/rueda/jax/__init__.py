"""rueda for JAX: collectives on arrays and pytrees, the same inside ``jax.jit`` as outside of it.

>>> import rueda.jax as hvd
>>> hvd.init()
>>> params = hvd.broadcast_parameters(params, root_rank=0)
>>> optimizer = hvd.DistributedOptimizer(optax.adam(1e-3))

Importing starts nothing. Of each kind, jitted or not, ranks match operations by name, so they may
reach independent ones in any order. An error of the job is a ``jax.errors.JaxRuntimeError`` with the
runtime's text; that of a lost rank begins with ``UNAVAILABLE``.
"""

from rueda.jax import _jax  # isort: skip  # first: says what to do without a JAX to use

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
from rueda.data import balance
from rueda.jax import _leave, _lowering, attention, elastic  # noqa: F401
from rueda.jax.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from rueda.jax.compression import Compression
from rueda.jax.functions import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
    initialize_distributed,
)
from rueda.jax.joining import join
from rueda.jax.messages import barrier, recv, send, sendrecv
from rueda.jax.optimizer import DistributedOptimizer, value_and_grad
