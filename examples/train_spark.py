"""Trains a small network on handwritten digits in PyTorch, on tasks of Spark.

    python examples/train_spark.py --ranks 2                             Spark in this process
    spark-submit --master yarn examples/train_spark.py --ranks 8         on a cluster

Spark prepares the digits, once; every rank reads its share of what Spark wrote. The folder must be one that all
executors see.
"""

import argparse
import gzip
import pathlib
import tempfile

import rueda.spark
from pyspark.sql import SparkSession

DATA = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def prepare(spark, folder, parts):
    """Writes the digits as text, shuffled, in as many files as there are ranks."""
    with gzip.open(DATA, "rt") as lines:
        digits = spark.sparkContext.parallelize(lines.read().splitlines())
    digits.repartition(parts).saveAsTextFile(folder)


def train(folder, epochs, lr):
    """(rank, share of all digits that are recognised)"""
    import numpy as np
    import rueda.torch as hvd
    import torch
    import torch.nn.functional as F

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    files = sorted(pathlib.Path(folder).glob("part-*"))
    table = torch.from_numpy(np.loadtxt(files[hvd.rank()], delimiter=",", dtype=np.float32))
    # As many on each rank, so that all make the same steps.
    count = int(hvd.allreduce(torch.tensor(len(table)), op=hvd.Min, name="count"))
    images, labels = table[:count, :64] / 16, table[:count, 64].long()

    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(epochs):
        for batch in torch.randperm(count).split(24):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    right = (model(images).argmax(1) == labels).float().mean()
    return hvd.rank(), hvd.allreduce(right, name="right").item()


def main():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with rueda on Spark.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", help="for the prepared digits; must not be there yet")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.002, help="of one rank")
    args = parser.parse_args()

    builder = SparkSession.builder.appName("digits").config("spark.ui.showConsoleProgress", "false")
    if not args.folder:
        builder = builder.master(f"local[{args.ranks}]")
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as own:
        folder = args.folder or f"{own}/digits"
        prepare(spark, folder, args.ranks)
        given = (folder, args.epochs, args.lr)
        for rank, right in rueda.spark.run(train, given, num_proc=args.ranks, verbose=0):
            print(f"rank {rank}: accuracy {right:.4f}")
    spark.stop()


if __name__ == "__main__":
    main()
