"""Trains a character model that one rank cannot hold: parameters, gradients and optimizer state are shared by the ranks.

    python examples/train_large.py --memory 480                   alone: says what it would need, and ends
    ruedarun -np 2 python examples/train_large.py --memory 480    two ranks
    ruedarun -np 4 python examples/train_large.py --memory 480 --checkpoint large    four, resumed from there

The model has 38 million parameters, 16 bytes each with gradient and Adam's two moments: 579 MiB. Each rank has its share of all
three, from the beginning, and of the whole only the block that it works on. ``--memory`` is what a rank may take for that beside
what PyTorch and rueda take: so much shared memory (``RUEDA_HEAP_BYTES``) and so much more address space (what ``ulimit -v``
limits), together. The text is this repository's pages, or ``--text``.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import time

import rueda.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn

PAGES = pathlib.Path(__file__).resolve().parents[1]
VOCABULARY = 128  # ASCII; everything else is a space
SHARED = 0.45  # of --memory: parameters and gradients lie there, the optimizer's state and activations do not
MIB = 1 << 20
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of glibc's malloc.h


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a model larger than a rank's memory with rueda.")
    parser.add_argument("--memory", type=int, metavar="MIB", help="what each rank may take; no limit, unless given")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per step, of all ranks")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", nargs="+", metavar="FILE", help="what is learnt")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="written at the end; resumed from, on any number of ranks")
    parser.add_argument("--report", metavar="FILE", help="rank 0 writes losses and memory as JSON")
    args = parser.parse_args()
    for name in ("layers", "width", "heads", "length", "batch_size", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected 1 or more")
    if args.width % args.heads:
        parser.error(f"--width {args.width} cannot be shared by --heads {args.heads}")
    return args


def load_text(args):
    """One tensor of characters, the same on every rank."""
    files = args.text or sorted((PAGES / "docs").glob("*.md"))
    text = "\n\n".join(pathlib.Path(file).read_text(encoding="utf-8") for file in files)
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8)
    if len(codes) < args.length + 2:
        raise SystemExit(f"--length {args.length}: the text has {len(codes)} characters")
    return torch.where(codes < VOCABULARY, codes, ord(" "))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, args.width)
        self.places = nn.Embedding(args.length, args.width)
        self.blocks = nn.ModuleList([Block(args.width, args.heads) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.width)
        self.out = nn.Linear(args.width, VOCABULARY)

    def forward(self, characters):
        x = self.characters(characters) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def memory(field):
    """MiB that /proc says of this process."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s*(\d+)", status)[1]) / 1024


def limit_memory(mib):
    """From now on this rank may take so much, and what it shares."""
    # The C library's malloc gives large blocks back as soon as they are free, and has no reserve for each thread.
    for option, value in ((M_MMAP_THRESHOLD, 256 << 10), (M_ARENA_MAX, 1)):
        ctypes.CDLL(None).mallopt(option, value)
    hvd.zeros(1)  # the shared memory's addresses are taken now, all of them
    small = Transformer(argparse.Namespace(layers=1, width=64, heads=1, length=8))  # what PyTorch itself takes
    small(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    torch.optim.Adam(small.parameters()).step()
    most = int((memory("VmSize") + (1 - SHARED) * mib) * MIB)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def parts_of(model):
    """(name, module) of what has all parameters, in parts that a rank can hold."""
    for name, part in model.named_children():
        if isinstance(part, nn.ModuleList):
            yield from ((f"{name}.{index}", block) for index, block in enumerate(part))
        else:
            yield name, part


def latest(folder):
    """The last step that is saved whole; 0: none is."""
    marker = pathlib.Path(folder or "", "latest")
    return int(marker.read_text()) if folder and marker.exists() else 0


def save(folder, step, model, optimizer):
    """A folder for the step; "latest" names it when all of it is there."""
    folder, before = pathlib.Path(folder), latest(folder)
    path = folder / str(step)
    path.mkdir(parents=True, exist_ok=True)
    for name, part in parts_of(model):
        with hvd.gathered(part):  # one is whole at a time
            if hvd.rank() == 0:
                torch.save(dict(part.named_parameters(prefix=name)), path / f"{name}.pt")
    optimizer.save_state(path / "optimizer")
    hvd.barrier()
    if hvd.rank() == 0:
        (folder / "latest.new").write_text(str(step))
        os.replace(folder / "latest.new", folder / "latest")
        if before and before != step:
            shutil.rmtree(folder / str(before))


def resume(folder, step, model, optimizer):
    path = pathlib.Path(folder, str(step))
    files = (path / f"{name}.pt" for name, _ in parts_of(model))
    hvd.load_parameters(model, (pair for file in files for pair in torch.load(file, weights_only=True).items()))
    optimizer.load_state(path / "optimizer")


def batch_of(text, step, args):
    """This rank's characters and those that follow; the whole batch is the same on any number of ranks."""
    random = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - args.length - 1, (args.batch_size,), generator=random)
    own = starts[hvd.rank() :: hvd.size()]
    whole = torch.stack([text[start : start + args.length + 1] for start in own]).long()
    return whole[:, :-1], whole[:, 1:]


def train(args):
    text = load_text(args)
    if args.batch_size % hvd.size():
        raise SystemExit(f"--batch-size {args.batch_size} cannot be shared by {hvd.size()} ranks")
    torch.manual_seed(args.seed)
    with hvd.no_init():  # parameters get memory and values below, each rank its share
        model = Transformer(args)
    count = sum(p.numel() for p in model.parameters())
    if hvd.rank() == 0:
        print(f"{count:,} parameters on {hvd.size()} ranks: {16 * count / MIB:.0f} MiB with gradients and Adam's state", flush=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), shard="parameters", module=model
    )
    first = latest(args.checkpoint)
    if first:
        resume(args.checkpoint, first, model, optimizer)
        if hvd.rank() == 0:
            print(f"goes on behind step {first}", flush=True)
    losses, began = [], time.perf_counter()
    for step in range(first, args.steps):
        characters, following = batch_of(text, step, args)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(characters).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
        if hvd.rank() == 0 and ((step + 1) % 10 == 0 or step + 1 == args.steps):
            rate = len(losses) * args.batch_size * args.length / (time.perf_counter() - began)
            print(f"step {step + 1:4}  loss {losses[-1]:.4f}  {rate:.0f} characters/s", flush=True)
    if args.checkpoint and args.steps > first:
        save(args.checkpoint, args.steps, model, optimizer)
    shared = hvd.allgather(torch.tensor([[memory("VmHWM"), memory("RssShmem")]]), name="memory").tolist()
    if hvd.rank() == 0:
        for rank, (most, mapped) in enumerate(shared):
            print(f"rank {rank}: {most:.0f} MiB resident at most, {mapped:.0f} MiB of it shared with the others")
        if args.report:
            pathlib.Path(args.report).write_text(json.dumps({"losses": losses, "first": first, "memory": shared}))


def main():
    args = parse_arguments()
    if args.memory:
        os.environ["RUEDA_HEAP_BYTES"] = str(int(SHARED * args.memory * MIB))
    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    if args.memory:
        limit_memory(args.memory)
    try:
        train(args)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise SystemExit(
            f"rank {hvd.rank()} of {hvd.size()}: --memory {args.memory} is not enough here; start more ranks (ruedarun -np "
            f"{2 * hvd.size()}), or give them more.\n{error}"
        ) from None
    hvd.shutdown()


if __name__ == "__main__":
    main()
