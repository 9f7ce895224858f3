"""Trains a small network on handwritten digits in JAX, data-parallel.

    ruedarun -np 2 python examples/train_jax.py       two ranks
    python examples/train_jax.py                      the same, alone

The whole step is one jitted program; `DistributedOptimizer` averages the gradients inside of it, as
one group.
"""

import argparse
import gzip
import hashlib
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rueda.jax as hvd

DATA = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def load_digits():
    """Images scaled to 0..1 and labels: (train x, train y, test x, test y)."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images, labels = table[:, :64] / 16, table[:, 64].astype(np.int32)
    is_test = np.arange(len(labels)) % 5 == 0
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


def make_parameters(key, widths=(64, 64, 10)):
    keys = jax.random.split(key, len(widths))
    return [
        {"w": jax.random.normal(k, (n, m)) * (2 / n) ** 0.5, "b": jnp.zeros(m)}
        for k, n, m in zip(keys, widths, widths[1:])
    ]


def model(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(params, x), y).mean()


def main():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with rueda and JAX.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optax.adam(args.lr))
    params = make_parameters(jax.random.key(hvd.rank()))  # different, so that there is work to do
    params = hvd.broadcast_parameters(params, root_rank=0)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

    train_x, train_y, test_x, test_y = load_digits()
    batch = args.batch_size * hvd.size()
    for epoch in range(args.epochs):
        # The order of the digits is every rank's: seeded by the epoch, not by the rank.
        order = np.random.default_rng(epoch).permutation(len(train_y))
        for start in range(0, len(order) - batch + 1, batch):
            mine = order[start : start + batch][hvd.rank() :: hvd.size()]
            params, state, loss = step(params, state, train_x[mine], train_y[mine])
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2}/{args.epochs} loss {loss:.4f}", flush=True)

    accuracy = (model(params, test_x).argmax(1) == test_y).mean()
    digest = hashlib.sha256(b"".join(np.asarray(p).tobytes() for p in jax.tree.leaves(params)))
    hashes = hvd.allgather_object(digest.hexdigest()[:16])
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
        for rank, value in enumerate(hashes):
            print(f"parameter hash rank {rank} {value}")
    hvd.shutdown()
    return 0 if len(set(hashes)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
