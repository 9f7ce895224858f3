"""Collectives on NumPy arrays:  ruedarun -np 2 python NAME"""

import numpy as np
import rueda as hvd


def main():
    hvd.init()  # joins the job; alone it is a job of one rank

    # Every rank has a part of the whole; here its own thousand random numbers.
    mine = np.random.default_rng(hvd.rank()).normal(size=1000)

    # The mean over all ranks. An operation has a name: ranks meet by it, in whatever order they come.
    total = hvd.allreduce(np.array([mine.sum(), mine.size]), op=hvd.Sum, name="total")
    mean = total[0] / total[1]

    # From every rank its largest number, on all ranks, in the order of the ranks.
    largest = hvd.allgather(np.array([mine.max()]), name="largest")

    # One rank decides, all know.
    label = hvd.broadcast_object(f"of {hvd.size()} ranks" if hvd.rank() == 0 else None, root_rank=0)

    if hvd.rank() == 0:
        print(f"mean {mean:.4f} {label}; largest by rank: {largest.round(2)}")


if __name__ == "__main__":
    main()
