"""Jobs under ruedarun whose ranks are lost and come again, as the runtime's own functions see them."""

import subprocess
import sys

PROGRAM = """
import os, signal
import numpy as np, rueda
from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError, RankLostError

EPOCH_ENDED, INTERRUPTED, READY = 1, 2, 4
rueda.init()
told = []
runtime.on_new_epoch.append(lambda: told.append(runtime.epoch.number))
if runtime.epoch.provisional:
    try:
        rueda.allreduce(np.ones(3))
        raise SystemExit("a newcomer has reduced")
    except HorovodInternalError as error:
        assert "collectives come after elastic.run has let it in" in str(error), error
    runtime.next_epoch(READY, layout=b"abc")
commits = runtime.epoch.target
while True:
    epoch = runtime.epoch
    try:
        if told:
            assert told[-1] == epoch.number and os.environ["RUEDA_RANK"] == str(rueda.rank())
            assert os.environ["RUEDA_SIZE"] == str(rueda.size()) == str(len(epoch.members))
        silent = []  # of each round: it took no message
        while True:
            mine = np.full(1000, 1 + epoch.member)
            total = rueda.allreduce(mine, op=rueda.Sum, name="sum")
            assert (total == sum(1 + member for member in epoch.members)).all()
            if epoch.member == 1 and commits == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            messages = runtime.counter("control_messages")
            word = runtime.commit_vote()
            silent.append(runtime.counter("control_messages") == messages)
            commits += 1
            if epoch.number > 2 and commits > epoch.target + 20:
                assert silent[-2]  # in the last round another rank may have left already, which is told
                print("done", epoch.members, rueda.rank(), rueda.size(), flush=True)
                rueda.shutdown()
                raise SystemExit
            if word >> 8 > epoch.announced >> 8:
                cause = INTERRUPTED
                break
    except RankLostError as error:
        assert error.rank == 1 and runtime.epoch_ended(60)
        cause = EPOCH_ENDED
    runtime.next_epoch(cause, True, commits, b"abc")
"""


def test_a_killed_rank_is_replaced_and_the_others_stay(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = ["ruedarun", "-np", "3", "--min-np", "2", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    for rank in range(3):
        assert f"[{rank}]<stdout>: done [0, 2, 3] {rank} 3" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
