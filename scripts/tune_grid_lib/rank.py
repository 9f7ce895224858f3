"""A rank of scripts/tune_grid: steps of one model for so many seconds; rank 0 prints the median of a step."""

import statistics
import sys
import time

import torch

import rueda.torch as hvd

WARM_UPS = 15  # until the step plan is in force


def digits():
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    return model, torch.randn(32, 64)


def mlp():
    """25 million parameters."""
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 3072), torch.nn.ReLU(), torch.nn.Linear(3072, 3072), torch.nn.ReLU(),
        torch.nn.Linear(3072, 3072), torch.nn.ReLU(), torch.nn.Linear(3072, 1024),
    )
    return model, torch.randn(8, 1024)


def transformer():
    """A block of GPT-2's size."""
    model = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    return model, torch.randn(2, 64, 768)


def main():
    name, seconds = sys.argv[1], float(sys.argv[2])
    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, data = {"digits": digits, "mlp": mlp, "transformer": transformer}[name]()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters()
    )

    def steps(count):
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter() - begun)
        return times

    typical = statistics.median(steps(WARM_UPS)[WARM_UPS // 2 :])
    times = steps(hvd.broadcast_object(max(10, int(seconds / typical))))  # the same number on all ranks
    if hvd.rank() == 0:
        print(f"step {statistics.median(times):.9f}", flush=True)


if __name__ == "__main__":
    main()
