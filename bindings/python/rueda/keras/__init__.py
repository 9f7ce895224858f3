"""rueda for Keras 3: the same script on every backend of Keras.

>>> import rueda.keras as hvd
>>> hvd.init()
>>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss="mse")
>>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Gradients are reduced by the collectives of the backend's framework, as one group in each step; the
functions of this module work on values: numbers, arrays and tensors go in, NumPy arrays come out.
"""

from rueda.keras import _keras  # isort: skip  # first: says what to do without a Keras to use

from rueda._waiting import barrier
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
from rueda.keras import callbacks, elastic
from rueda.keras._framework import Compression, join
from rueda.keras.functions import (
    allgather,
    allgather_object,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    load_model,
    reducescatter,
)
from rueda.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
