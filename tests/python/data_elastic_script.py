"""Goes through 60 samples in an elastic job of three ranks, of which the last dies in its fourth step.

    data_elastic_script.py FOLDER

What a rank has trained on goes to FOLDER/<member>, a line a step: ``STEP SIZE RANK SAMPLE ...``. A step
that was not committed when the rank died comes again, on fewer ranks.
"""

import os
import signal
import sys

import numpy as np
import rueda as hvd
from rueda import elastic
from rueda._runtime import runtime
from rueda.data import Arrays, DataLoader

hvd.init()
loader = DataLoader(Arrays(np.arange(60)), 2, seed=6, uneven="drop")
state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, data=loader.state_dict(), step=0)


@elastic.run
def train(state):
    loader.load_state_dict(state.data)
    with open(os.path.join(sys.argv[1], str(runtime.epoch.member)), "a") as told:
        for batch in loader:
            # Before: who is in it when the rank dies may end it, and commit it for all, or not.
            print(state.step, hvd.size(), hvd.rank(), *batch.tolist(), file=told, flush=True)
            hvd.allreduce(batch, name="gradient")
            if state.step == 3 and runtime.epoch.member == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            state.step += 1
            state.data = loader.state_dict()
            state.commit()


train(state)
hvd.shutdown()
