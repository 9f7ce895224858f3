"""How long `rueda.torch.checkpoint.save` keeps training waiting, against a copy of the rank's own share.

    ruedarun -np 2 python tests/benchmarks/checkpoint_blocking.py [MEGABYTES [FOLDER]]

A model with Adam's state, of as many megabytes together (300), is saved 15 times, each time when nothing is being
written; the copy is of tensors of one share into memory that is there. Medians, of the slowest rank.
"""

import statistics
import sys
import tempfile
import time

import rueda.torch as hvd
import torch
from rueda.torch import checkpoint

TIMES = 15


def training(nbytes):
    width = max(16, int((nbytes / 12 / 8) ** 0.5))  # eight layers; values, and two of Adam for each
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def seconds(run, prepare):
    taken = []
    for _ in range(TIMES):
        prepare()
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    slowest = hvd.allreduce(torch.tensor(taken, dtype=torch.float64), op=hvd.Max)
    return statistics.median(slowest.tolist())


def main():
    nbytes = int(sys.argv[1] if len(sys.argv) > 1 else 300) << 20
    hvd.init()
    folder = hvd.broadcast_object(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="rueda-"), 0)
    state = training(nbytes)
    optimizer, share = state["optimizer"], []
    values = [p.detach() for p in state["model"].parameters()] + [
        value for parts in optimizer.state.values() for key, value in parts.items() if key != "step"
    ]
    for value in values:  # as many bytes as each rank writes
        share.append(value.reshape(-1)[: value.numel() // hvd.size()])
    copies = [torch.zeros_like(part) for part in share]

    def copy():
        for target, part in zip(copies, share):
            target.copy_(part)

    checkpoint.save(folder, state, step=0, wait=True)
    copied = seconds(copy, hvd.barrier)
    saved = seconds(lambda: checkpoint.save(folder, state, step=1), checkpoint.wait)
    checkpoint.wait()
    if hvd.rank() == 0:
        megabytes = sum(part.numel() * part.element_size() for part in share) / 1e6
        print(
            f"{hvd.size()} ranks, {megabytes:.0f} MB each: save blocks {saved * 1e3:.2f} ms, "
            f"memcpy {copied * 1e3:.2f} ms, ratio {saved / copied:.2f}"
        )


main()
