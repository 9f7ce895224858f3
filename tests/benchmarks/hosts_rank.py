"""A rank of scripts/bench_hosts: hosts_rank.py PROGRAM ADDRESS_OF_RANK_0 MEGABYTES,..."""

import os
import statistics
import sys
import time

import numpy as np

SECONDS = 3.0  # of measuring, for each size


def rueda():
    import rueda.numpy as hvd

    hvd.init()

    def allreduce(data):
        return hvd.allreduce(data, op=hvd.Sum, name=f"data {data.size}")

    def agree(value):
        return hvd.broadcast(np.array([value]), root_rank=0, name="agree")[0]

    return hvd.rank(), allreduce, agree, hvd.shutdown


def gloo(address):
    import torch
    import torch.distributed as dist

    rank, size = os.environ["RUEDA_RANK"], os.environ["RUEDA_SIZE"]
    os.environ.update(MASTER_ADDR=address, MASTER_PORT="29555", GLOO_SOCKET_IFNAME="eth0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(size))

    def allreduce(data):
        dist.all_reduce(torch.from_numpy(data))

    def agree(value):
        tensor = torch.tensor([value])
        dist.broadcast(tensor, 0)
        return tensor.item()

    return int(rank), allreduce, agree, dist.destroy_process_group


def main():
    program, address, sizes = sys.argv[1:]
    rank, allreduce, agree, leave = rueda() if program == "rueda" else gloo(address)
    for size in sizes.split(","):
        data = np.zeros(int(float(size) * 1e6) // 4, np.float32)
        allreduce(data)
        begin = time.perf_counter()
        allreduce(data)
        rounds = agree(min(100, max(3, int(SECONDS / (time.perf_counter() - begin)))))
        times = []
        for _ in range(int(rounds)):
            begin = time.perf_counter()
            allreduce(data)
            times.append(time.perf_counter() - begin)
        if rank == 0:
            print("ROW", size, statistics.median(times) * 1e3, flush=True)
    leave()


main()
