"""Trains a small convolutional network on handwritten digits, data-parallel.

    ruedarun -np 2 python examples/train_digits.py       two ranks
    python examples/train_digits.py                      the same, alone

Every rank takes its share of each global batch; `DistributedOptimizer` averages the gradients while
backward is still running. With `--same-batches` the global batch and the learning rate do not
depend on the number of ranks, so the loss curve is that of a run alone.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import sys

import numpy as np
import rueda.torch as hvd
import torch
import torch.nn.functional as F

DATA = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"
WARMUP_EPOCHS = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with rueda.")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.012, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--same-batches",
        action="store_true",
        help="--batch-size is shared by all ranks and the learning rate is not scaled",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="written by rank 0; resumed from")
    parser.add_argument("--timeline", metavar="FILE", help="write what rueda did, for Perfetto")
    parser.add_argument("--loss-log", metavar="FILE", help="write the loss of every step")
    return parser.parse_args()


def load_digits():
    """Images scaled to 0..1 and labels: (train x, train y, test x, test y)."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :64] / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64]).long()
    is_test = torch.arange(len(labels)) % 5 == 0
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


def make_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 4, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def show_progress(epoch, epochs, done, steps, text=""):
    """A bar on rank 0; one line per epoch where the output is not a terminal."""
    if hvd.rank() != 0 or not (done == steps or sys.stdout.isatty()):
        return
    bar = "#" * (20 * done // steps)
    start, end = ("\r", "\n" if text else "") if sys.stdout.isatty() else ("", "\n")
    print(f"{start}epoch {epoch + 1:2}/{epochs} [{bar:.<20}] {text}", end=end, flush=True)


def train_epoch(model, optimizer, images, labels, epoch, args):
    """One pass over the training digits; returns the global loss of every step."""
    ranks = 1 if args.same_batches else hvd.size()  # by which batch and learning rate grow
    batch = args.batch_size * ranks
    # The order of the digits is every rank's: seeded by the epoch, not by the rank.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    steps = -(-len(order) // batch)
    losses = []
    for step in range(steps):
        # From one rank's learning rate up to that of all, during the first epochs.
        warm = min(1.0, (epoch * steps + step) / (WARMUP_EPOCHS * steps))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * (1 + (ranks - 1) * warm)
        whole = order[step * batch : (step + 1) * batch]
        mine = whole[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        # Scaled so that the average over ranks is the mean over the whole batch, also where the
        # last batch does not divide evenly.
        loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        loss = loss * (hvd.size() / len(whole))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        show_progress(epoch, args.epochs, step, steps)
    return hvd.allreduce(torch.stack(losses), name="losses")


def test_accuracy(model, images, labels):
    """Share of test digits that are recognised; every rank looks at its own part."""
    with torch.no_grad():
        mine = slice(hvd.rank(), None, hvd.size())
        right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(labels)


def save(path, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)  # a killed job leaves the old file or the new one


def parameter_hash(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    args = parse_arguments()
    if args.timeline:
        os.environ["RUEDA_TIMELINE"] = args.timeline
    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(args.seed + hvd.rank())  # different, so that the broadcast has work to do

    train_images, train_labels, test_images, test_labels = load_digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    first_epoch = 0
    if args.checkpoint and hvd.rank() == 0 and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    if hvd.rank() == 0:
        print(f"training on {hvd.size()} ranks, {len(train_labels)} digits", flush=True)
    curve = []
    for epoch in range(first_epoch, args.epochs):
        losses = train_epoch(model, optimizer, train_images, train_labels, epoch, args)
        curve += losses.tolist()
        accuracy = test_accuracy(model, test_images, test_labels)
        text = f"loss {losses.mean().item():.4f}  accuracy {accuracy:.4f}"
        show_progress(epoch, args.epochs, len(losses), len(losses), text)
        if args.checkpoint and hvd.rank() == 0:
            save(args.checkpoint, model, optimizer, epoch + 1)
    if args.loss_log and hvd.rank() == 0:
        pathlib.Path(args.loss_log).write_text("".join(f"{loss!r}\n" for loss in curve))

    accuracy = test_accuracy(model, test_images, test_labels)
    hashes = hvd.allgather_object(parameter_hash(model))
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
        for rank, value in enumerate(hashes):
            print(f"parameter hash rank {rank} {value}")
    hvd.shutdown()
    return 0 if len(set(hashes)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
