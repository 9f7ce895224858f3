"""The peer: a rank of torchrun, which restarts all of them when one is lost. restarted_rank.py FOLDER MEGABYTES

Its state is in a checkpoint, which is written before the first step. ``process PID`` and ``did STEP SIZE SECONDS RANK RESTART`` go to
FOLDER/log.<rank>.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

folder, megabytes = sys.argv[1], int(sys.argv[2])
log = os.open(os.path.join(folder, f"log.{os.environ['RANK']}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
checkpoint = os.path.join(folder, "checkpoint.pt")


def say(*words):
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


say("process", os.getpid())
# What ranks of an earlier start have said must not be read again.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store = dist.PrefixStore("start " + os.environ["TORCHELASTIC_RESTART_COUNT"], store)
dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
torch.set_num_threads(1)
state = {"weights": torch.zeros(megabytes << 18), "step": 0}
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
elif dist.get_rank() == 0:
    torch.save(state, checkpoint + ".tmp")
    os.rename(checkpoint + ".tmp", checkpoint)
dist.barrier()
trained = state["weights"][: 1 << 18]
step = state["step"]
enough = torch.zeros(1)
while not enough.item():
    gradient = torch.ones_like(trained)
    dist.all_reduce(gradient)
    trained -= 1e-3 * gradient
    step += 1
    say("did", step, dist.get_world_size(), time.monotonic(), dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"])
    enough.fill_(os.path.exists(os.path.join(folder, "enough")))
    dist.all_reduce(enough)
    time.sleep(0.02)
os._exit(0)
