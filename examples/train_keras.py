"""Trains a small network on handwritten digits in Keras, data-parallel, on any backend of Keras.

    KERAS_BACKEND=jax ruedarun -np 2 python examples/train_keras.py     two ranks
    KERAS_BACKEND=torch python examples/train_keras.py                  alone

`DistributedOptimizer` averages the gradients of each step, as one group; the callbacks do what else a
job of several ranks needs.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
import rueda.keras as hvd

DATA = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def load_digits():
    """Images scaled to 0..1 and labels: (train x, train y, test x, test y)."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images, labels = table[:, :64] / 16, table[:, 64].astype(np.int32)
    is_test = np.arange(len(labels)) % 5 == 0
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


def main():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with rueda and Keras.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.002, help="of one rank; scaled by their number")
    parser.add_argument("--save", help="where to save the best model")
    args = parser.parse_args()

    hvd.init()
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    lr = args.lr * hvd.size()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(lr)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    train_x, train_y, test_x, test_y = load_digits()
    # Every rank its own digits, and as many as the others, so that all make the same steps.
    per_rank = len(train_y) // hvd.size()
    mine = slice(hvd.rank() * per_rank, (hvd.rank() + 1) * per_rank)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(lr, warmup_epochs=2),
    ]
    if args.save:
        callbacks.append(hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=args.save))
    model.fit(
        train_x[mine],
        train_y[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )

    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    digest = hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights()))
    hashes = hvd.allgather_object(digest.hexdigest()[:16])
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
        for rank, value in enumerate(hashes):
            print(f"parameter hash rank {rank} {value}")
    hvd.shutdown()
    return 0 if len(set(hashes)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
