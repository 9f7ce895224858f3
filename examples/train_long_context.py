"""Trains a character-level transformer on long sequences, data x sequence parallel.

    ruedarun -np 2 python examples/train_long_context.py              two ranks share each sequence
    ruedarun -np 4 python examples/train_long_context.py --ring-size 2   two pairs of ranks
    python examples/train_long_context.py                             the same, alone
    python examples/train_long_context.py --scaling 1,2,4             tokens/s, scaling, memory

``--ring-size`` neighbouring ranks hold the characters of one sequence, in the zigzag layout; each
such group takes its share of the batch. The loss is that of one process, up to rounding. The text is
the Python language reference that ``help()`` shows (``pydoc_data.topics``, part of every Python).
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import rueda.attention as ra
import rueda.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 128  # ASCII; everything else is a space


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains on long sequences with rueda.")
    parser.add_argument("--length", type=int, default=4096, help="characters of a sequence")
    parser.add_argument("--batch-size", type=int, default=2, help="sequences per step, of all ranks")
    parser.add_argument("--ring-size", type=int, help="ranks to a sequence; all, unless given")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--embed-dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of a rank; its share of this host's cores")
    parser.add_argument("--report", metavar="FILE", help="rank 0 writes losses and figures as JSON")
    parser.add_argument("--scaling", metavar="RANKS", help="run on each number of ranks and compare")
    args = parser.parse_args()
    for name in ("length", "batch_size", "steps", "layers", "embed_dim", "heads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected 1 or more")
    if args.embed_dim % (2 * args.heads):
        parser.error(f"--embed-dim {args.embed_dim} cannot be shared by --heads {args.heads} in pairs")
    return args


def load_text():
    """The language reference as one tensor of characters."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
    return torch.where(codes < VOCABULARY, codes, ord(" "))


def rotate(x, positions):
    """Rotary embedding: position p turns the i-th pair of (batch, tokens, heads, dim) by p * f_i."""
    frequencies = 10000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2)
    angle = positions[:, None, None] * frequencies
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Block(nn.Module):
    def __init__(self, embed_dim, heads, threads, sequence):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.attend = ra.RingAttention(
            causal=True, layout="zigzag", process_set=sequence, threads=threads
        )
        self.out = nn.Linear(embed_dim, embed_dim)
        self.norms = nn.ModuleList([nn.LayerNorm(embed_dim) for _ in range(2)])
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, 4 * embed_dim), nn.GELU(), nn.Linear(4 * embed_dim, embed_dim)
        )

    def forward(self, x, positions, length):
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.unbind(2)
        q, k = rotate(q, positions), rotate(k, positions)
        x = x + self.out(self.attend(q, k, v, length=length).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, args, sequence):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, args.embed_dim)
        self.blocks = nn.ModuleList(
            [Block(args.embed_dim, args.heads, args.threads, sequence) for _ in range(args.layers)]
        )
        self.norm = nn.LayerNorm(args.embed_dim)
        self.out = nn.Linear(args.embed_dim, VOCABULARY)

    def forward(self, characters, positions, length):
        x = self.embed(characters)
        for block in self.blocks:
            x = block(x, positions, length)
        return self.out(self.norm(x))


def batches(text, args):
    """Characters and those that follow, (batch, length + 1), the same on every rank."""
    random = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        starts = torch.randint(len(text) - args.length - 1, (args.batch_size,), generator=random)
        yield torch.stack([text[start : start + args.length + 1] for start in starts])


def peak_memory():
    """MiB that this process had at most."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024


def train(args):
    hvd.init()
    args.threads = args.threads or max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    torch.set_num_threads(args.threads)
    sequence, _ = ra.sequence_parallel_sets(args.ring_size or hvd.size())
    groups = hvd.size() // sequence.size()
    if args.batch_size % groups:
        raise SystemExit(f"--batch-size {args.batch_size} cannot be shared by {groups} groups of ranks")
    torch.manual_seed(args.seed)
    model = Transformer(args, sequence)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    positions = torch.from_numpy(
        ra.position_ids(args.length, "zigzag", sequence.rank(), sequence.size())
    )
    text = load_text()
    if args.length + 2 > len(text):
        raise SystemExit(f"--length {args.length}: the text has {len(text)} characters")
    before = peak_memory()
    losses, started = [], None
    for step, whole in enumerate(batches(text, args)):
        own = whole[hvd.rank() // sequence.size() :: groups]
        # Every rank's characters, and after each the one to guess; nothing is gathered.
        characters, wanted = own[:, positions], own[:, positions + 1]
        optimizer.zero_grad()
        scores = model(characters, positions, args.length)
        # Scaled so that the average over ranks is the mean over all characters.
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
        loss = loss * (hvd.size() / (args.batch_size * args.length))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step == 0:
            started = time.perf_counter()  # the first step makes plans and connections
        if hvd.rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:4}  loss {loss.item():.4f} (rank 0's characters)", flush=True)
    seconds = time.perf_counter() - started
    curve = hvd.allreduce(torch.stack(losses), name="losses").tolist()
    rate = (args.steps - 1) * args.batch_size * args.length / max(seconds, 1e-9)
    memory = hvd.allgather(torch.tensor([[before, peak_memory()]]), name="memory").tolist()
    if hvd.rank() == 0:
        print(
            f"{hvd.size()} ranks, {sequence.size()} to a sequence of {args.length} characters: "
            f"loss {curve[0]:.4f} to {curve[-1]:.4f}, {rate:.0f} characters/s"
        )
        for rank, (start, most) in enumerate(memory):
            print(f"rank {rank}: {most:.0f} MiB resident at most, {most - start:.0f} by training")
        if args.report:
            report = {"losses": curve, "rate": rate, "memory": memory}
            pathlib.Path(args.report).write_text(json.dumps(report))
    hvd.shutdown()


def run_on(ranks, args, length):
    """The report of a job of so many ranks, all of which share each sequence."""
    report = pathlib.Path(f"{args.report or 'long_context'}.{ranks}.{length}.json")
    command = [
        os.environ.get("RUEDA_RUEDARUN", "ruedarun"), "-np", ranks, sys.executable, __file__,
        "--length", length, "--report", report, "--threads", args.threads or 1,
    ]  # fmt: skip
    for name in ("batch_size", "steps", "layers", "embed_dim", "heads", "lr", "seed"):
        command += ["--" + name.replace("_", "-"), getattr(args, name)]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    found = json.loads(report.read_text())
    report.unlink()
    return found


def compare(args):
    """Strong scaling keeps the sequence, weak scaling the characters of a rank."""
    counts = [int(count) for count in args.scaling.split(",")]
    print("scaling  ranks  length  characters/s  speedup  MiB by training, per rank  loss off by")
    for name in ("strong", "weak"):
        first = None
        for ranks in counts:
            length = args.length if name == "strong" else args.length * ranks // counts[0]
            found = run_on(ranks, args, length)
            first = first or found
            memory = max(most - start for start, most in found["memory"])
            pairs = zip(found["losses"], first["losses"])
            off = f"{max(abs(a / b - 1) for a, b in pairs):.1e}" if name == "strong" else ""
            print(
                f"{name:7}  {ranks:5}  {length:6}  {found['rate']:12.0f}  "
                f"{found['rate'] / first['rate']:7.2f}  {memory:25.0f}  {off}",
                flush=True,
            )


if __name__ == "__main__":
    arguments = parse_arguments()
    compare(arguments) if arguments.scaling else train(arguments)
