"""How long `rueda.torch.checkpoint.save` keeps training waiting, against a copy of the rank's own share.

    ruedarun -np 2 python tests/benchmarks/checkpoint_blocking.py [MEGABYTES [LAYERS [FOLDER]]]

A model of LAYERS layers (8) with Adam's state, of MEGABYTES (300) together, is saved when nothing is being written. The
copy is one of as many bytes as this rank writes, from one warm piece of memory to another that is warm. Rounds of both,
in either order; medians of the slowest rank's times, and of the rounds' ratios with the quarters beside. The first
save, into memory that is new, is told by itself.

What writing takes from training afterwards is told as well: a copy and a product of matrices, again and again, while a
thread writes, against the same when none does.
"""

import shutil
import statistics
import sys
import tempfile
import time

import rueda.torch as hvd
import torch
from rueda.torch import checkpoint

ROUNDS = 20
WORK_SECONDS = 0.1


def training(nbytes, layers):
    width = max(16, int((nbytes / 12 / layers) ** 0.5))  # values, and two of Adam for each
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def own_bytes(state):
    values = [*state["model"].state_dict().values()]
    values += [value for parts in state["optimizer"].state.values() for value in parts.values()]
    return sum(value.numel() * value.element_size() for value in values) // hvd.size()


def seconds(run):
    checkpoint.wait()
    hvd.barrier()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def slowest(taken):
    return hvd.allreduce(torch.tensor(taken, dtype=torch.float64), op=hvd.Max).tolist()


def rotated(*runs):
    """Of each, its seconds in every round."""
    taken = [[] for _ in runs]
    for n in range(ROUNDS):
        for k in range(len(runs)):
            which = (n + k) % len(runs)
            taken[which].append(seconds(runs[which]))
    return [slowest(each) for each in taken]


def work():
    """How often a piece of work is done in a time."""
    a, source, target = torch.ones(256, 256), torch.ones(1 << 20), torch.zeros(1 << 20)
    end, count = time.perf_counter() + WORK_SECONDS, 0
    while time.perf_counter() < end:
        target.copy_(source)
        a @ a
        count += 1
    return count


def worked(folder, state, is_saving):
    checkpoint.wait()
    hvd.barrier()
    if is_saving:
        checkpoint.save(folder, state, step=2)
    return work()


def main():
    nbytes = int(sys.argv[1] if len(sys.argv) > 1 else 300) << 20
    layers = int(sys.argv[2] if len(sys.argv) > 2 else 8)
    hvd.init()
    folder = hvd.broadcast_object(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix="rueda-"), 0)
    state = training(nbytes, layers)
    share = own_bytes(state)
    source, target = torch.ones(share, dtype=torch.uint8), torch.zeros(share, dtype=torch.uint8)

    (first,) = slowest([seconds(lambda: checkpoint.save(folder, state, step=0))])
    copied, saved = rotated(lambda: target.copy_(source), lambda: checkpoint.save(folder, state, step=1))
    beside = [worked(folder, state, n % 2 == 1) for n in range(10)]
    checkpoint.wait()
    if hvd.rank() == 0:
        low, ratio, high = statistics.quantiles([a / b for a, b in zip(saved, copied)], n=4)
        print(
            f"{hvd.size()} ranks, {share / 1e6:.0f} MB each in {layers} layers: memcpy {statistics.median(copied) * 1e3:.2f} ms, "
            f"save blocks {statistics.median(saved) * 1e3:.2f} ms, ratio {ratio:.2f} ({low:.2f} to {high:.2f}); first save "
            f"{first * 1e3:.1f} ms; while it is written, training does "
            f"{statistics.median(beside[1::2]) / statistics.median(beside[::2]):.0%} of its work"
        )
        if len(sys.argv) <= 3:
            shutil.rmtree(folder)
    hvd.barrier()


main()
