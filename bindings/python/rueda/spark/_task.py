"""What each task of the barrier stage does: meet the others, call the function, and leave."""

import json
import os
import secrets

from pyspark import BarrierTaskContext, cloudpickle
from rueda import _init_options, _meeting, _outcomes
from rueda.compat import horovod


def make(work, env, verbose, with_horovod):
    """The function of the stage's partitions. It yields ``(rank, facts, Outcome)``; the rank is the partition.

    ``work``: ``(function, args, kwargs)``, pickled. ``with_horovod``: whether ``import horovod`` means rueda, as it
    does in the driver.
    """

    def call():
        if with_horovod:
            horovod.ask()
        function, args, kwargs = cloudpickle.loads(work)
        return function(*args, **kwargs)

    def task(_):
        context = BarrierTaskContext.get()
        before = {name: os.environ.get(name) for name in (*env, *_meeting.PLACE)}
        os.environ.update(env)
        try:
            rank, everybody = _meet(context)
            if verbose:
                print(f"rank {rank} of {len(everybody)} is process {os.getpid()}", flush=True)
            yield rank, everybody[rank], _outcomes.call(call, pickler=cloudpickle)
        finally:
            # The process may be a task of the next stage.
            _outcomes.leave()
            _init_options.give(None)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    return task


def _meet(context):
    """(this rank, the facts of all); from now on ``init()`` joins the job."""
    rank = context.partitionId()
    address = context.getTaskInfos()[rank].address.rpartition(":")[0]
    mine = _meeting.facts(address, address)
    if rank == 0:
        mine.update(job=f"spark-{secrets.token_hex(16)}", key=_meeting.new_key().hex())
    everybody = [json.loads(text) for text in context.allGather(json.dumps(mine))]
    job, key = everybody[0].pop("job"), bytes.fromhex(everybody[0].pop("key"))
    _init_options.give(_meeting.places(job, everybody, key)[rank])
    os.environ.update(_meeting.variables(everybody)[rank])
    return rank, everybody
