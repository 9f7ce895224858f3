"""How long `TorchState.commit` keeps training waiting, against deep copies of the same state.

    ruedarun -np 2 --min-np 1 python tests/benchmarks/commit_times.py [MEGABYTES]

A model of so many megabytes of parameters (100) with Adam is trained, and committed after each step. The times are those
of commits, which are saves and votes, once what only the optimizer changes is known, and of the waits that they cost the
next step. A commit begins on all ranks at once, as a vote would wait for the slowest rank's step else.
"""

import copy
import statistics
import sys
import time

import rueda.torch as hvd
import torch

STEPS = 30
USED = 10  # the last of them count


def timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main():
    nbytes = int(sys.argv[1] if len(sys.argv) > 1 else 100) << 20
    hvd.init()
    width = max(16, int((nbytes / 4 / 8) ** 0.5))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    commits, votes, waits = [], [], []
    vote = state.check_host_updates
    state.check_host_updates = lambda: votes.append(timed(vote))

    @hvd.elastic.run
    def train(state):
        while state.step < STEPS:
            optimizer.zero_grad()
            model(torch.randn(16, width)).square().mean().backward()
            # What the step would wait for: the copies of the last commit.
            waits.append(timed(state._verified))
            optimizer.step()
            state.step += 1
            hvd.barrier()
            commits.append(timed(state.commit))

    train(state)
    copies = [timed(lambda: copy.deepcopy((model.state_dict(), optimizer.state_dict()))) for _ in range(3)]
    figures = [statistics.median(taken) for taken in (commits[-USED:], votes[-USED:], waits[-USED:], copies)]
    slowest = hvd.allreduce(torch.tensor(figures, dtype=torch.float64), op=hvd.Max).tolist()
    if hvd.rank() == 0:
        commit, vote, wait, deep = slowest
        print(f"commit {commit * 1e3:.2f} ms (vote {vote * 1e3:.2f} ms), wait of the next step {wait * 1e3:.2f} ms, deepcopy {deep * 1e3:.0f} ms")
        print(f"a commit is {deep / commit:.0f} x faster than deepcopy")
    hvd.shutdown()


if __name__ == "__main__":
    main()
