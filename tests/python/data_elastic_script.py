"""Goes through files in an elastic job of three ranks, of which the last dies in its fourth step.

    data_elastic_script.py FILES FOLDER SIZE

It ends with the first epoch at whose end there are SIZE ranks. A file's sample is the number that is its name. What a rank
trains on goes to FOLDER/<member>, a line a step: ``EPOCH STEP SIZE RANK SAMPLE ...``. A step that was not committed when the
rank died comes again, on fewer ranks.
"""

import os
import signal
import sys

import rueda as hvd
from rueda import elastic
from rueda._runtime import runtime
from rueda.data import DataLoader, Files

files, folder, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
hvd.init()
# Who comes later does this alone: the others are training.
loader = DataLoader(Files(files, read=lambda path: int(os.path.basename(path))), 2, seed=6)
state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, data=loader.state_dict(), step=0, is_over=False)


@elastic.run
def train(state):
    loader.load_state_dict(state.data)
    with open(os.path.join(folder, str(runtime.epoch.member)), "a") as told:
        while not state.is_over:
            for batch in loader:
                # Before: who is in it when the rank dies may end it, and commit it for all, or not.
                print(loader.epoch, state.step, hvd.size(), hvd.rank(), *batch.tolist(), file=told, flush=True)
                hvd.allreduce(batch, name="gradient")
                if state.step == 3 and runtime.epoch.member == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                state.step += 1
                state.data = loader.state_dict()
                state.commit()
            state.is_over = hvd.size() == size
            state.data = loader.state_dict()
            state.commit()


train(state)
hvd.shutdown()
