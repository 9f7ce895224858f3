"""Trains on handwritten digits that lie in tar archives: dealt out, shuffled, read ahead, resumed in the middle of an epoch.

    ruedarun -np 2 python examples/train_data.py                            two ranks
    ruedarun -np 2 python examples/train_data.py --checkpoint digits.pt     stop it when you like, and start it again,
                                                                            on another number of ranks too

Rank 0 packs the digits first, as WebDataset has them: a few archives with an image and a label of each sample.
"""

import argparse
import gzip
import io
import os
import pathlib
import sys
import tarfile
import tempfile

import numpy as np
import rueda.data
import rueda.torch as hvd
import torch

DIGITS = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a digit classifier on tar archives.")
    parser.add_argument("--data", metavar="FOLDER", help="where the archives are, or are put; a new folder without")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--workers", type=int, default=2, help="threads that read")
    parser.add_argument("--checkpoint", metavar="FILE", help="written by rank 0 every 20 steps; resumed from")
    parser.add_argument("--steps", type=int, help="stop after so many, wherever that is")
    return parser.parse_args()


def pack_digits(folder, archives=4):
    """Every digit as an image of 64 bytes and a label, dealt out to some archives."""
    with gzip.open(DIGITS, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(archives):
        with tarfile.open(folder / f"digits-{number}.tar", "w") as archive:
            for index in range(number, len(table), archives):
                for suffix, data in (("img", table[index, :64].tobytes()), ("cls", b"%d" % table[index, 64])):
                    member = tarfile.TarInfo(f"{index:04}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def decode(sample):
    """(image of 64 numbers between 0 and 1, label); runs in the background."""
    return np.frombuffer(sample["img"], np.uint8).astype(np.float32) / 16, int(sample["cls"])


def save(path, model, optimizer, loader):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}, path + ".new")
    os.replace(path + ".new", path)  # a killed job leaves the old file or the new one


def main():
    args = parse_arguments()
    hvd.init()
    folder = pathlib.Path(hvd.broadcast_object(args.data or tempfile.mkdtemp(prefix="digits-")))
    if hvd.rank() == 0 and not list(folder.glob("*.tar")):
        pack_digits(folder)
    hvd.barrier()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Rank 0 lists the folder, and each archive's headers are read by one rank.
    source = rueda.data.WebDataset(folder, decode=decode)
    loader = rueda.data.DataLoader(source, args.batch_size, seed=1, to="torch", workers=args.workers, prefetch=4)
    if args.checkpoint and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["data"])
        if hvd.rank() == 0:
            print(f"goes on behind sample {loader.consumed} of epoch {loader.epoch + 1}", flush=True)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    step = 0
    for epoch in range(loader.epoch, args.epochs):
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            step += 1
            if args.checkpoint and hvd.rank() == 0 and step % 20 == 0:
                save(args.checkpoint, model, optimizer, loader)
            if step == args.steps:
                hvd.shutdown()
                return 0
        if losses:
            mean = hvd.allreduce(torch.stack(losses).mean(), name="loss")
            if hvd.rank() == 0:
                print(f"epoch {epoch + 1}/{args.epochs} loss {mean:.4f}", flush=True)
    waited = hvd.allgather(torch.tensor([rueda.data.wait_seconds()]), name="waited")
    if hvd.rank() == 0:
        print("waited for data: " + ", ".join(f"rank {rank} {each:.2f} s" for rank, each in enumerate(waited.tolist())))
        print(f"parameter sum {sum(p.double().sum().item() for p in model.parameters()):.12f}")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
