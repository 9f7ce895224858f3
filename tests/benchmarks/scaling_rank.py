"""A transformer on characters, trained on more and more ranks: scaling_rank.py WAY:MANNER:SIZE...

WAY: how the ranks share the work

    data         hvd.DistributedOptimizer: sequences of the batch
    state, gradients, parameters, host   the same with shard=; host: shard="gradients", share="host"
    sequence     ring attention: every sequence, in the zigzag layout

MANNER: strong (the work of a step is the same on any number of ranks) or weak (that of a rank is). SIZE: usual or small.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import rueda.attention as ra
import rueda.torch as hvd
from meeting import Meeting, figures, print_row, samples_of, state_of

WARM_UPS, STEPS = 2, 9
# layers, width, heads, tokens of a sequence, sequences: of one rank's step
SIZES = {"usual": (4, 256, 4, 256, 8), "small": (1, 32, 2, 64, 8)}
SHARDED = {"state": {"shard": "state"}, "gradients": {"shard": "gradients"}, "host": {"shard": "gradients", "share": "host"}}
VOCABULARY = 128


class Block(nn.Module):
    def __init__(self, width, heads, ring):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ring = ra.RingAttention(causal=True, layout="zigzag", threads=1) if ring else None
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.ring is not None:
            mixed = self.ring(q, k, v)
        else:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(mixed.flatten(-2))
        return x + self.mlp(self.norms[1](x))


def work_of(way, manner, size):
    """(step, tokens of all ranks in a step)."""
    layers, width, heads, length, sequences = SIZES[size]
    ranks = hvd.size()
    if way == "sequence":
        length *= ranks if manner == "weak" else 1
    elif manner == "weak":
        sequences *= ranks
    own_length = length // ranks if way == "sequence" else length
    own_sequences = sequences if way == "sequence" else sequences // ranks
    if sequences % ranks and way != "sequence" or length % (2 * ranks) and way == "sequence":
        raise ValueError(f"{ranks} ranks cannot share {sequences} sequences of {length} tokens")
    torch.manual_seed(1)
    blocks = [Block(width, heads, way == "sequence") for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.Linear(width, VOCABULARY))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    shards = {"shard": "parameters", "module": model} if way == "parameters" else SHARDED.get(way, {})
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **shards)
    x = torch.randint(VOCABULARY, (own_sequences, own_length))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()

    return step, length * sequences


def main():
    torch.set_num_threads(1)
    hvd.init()
    meeting = Meeting(hvd.rank(), hvd.size())
    meeting.pin_to_core()
    print_row(meeting, about={"torch": torch.__version__})
    for case in sys.argv[1:]:
        try:
            step, tokens = work_of(*case.split(":"))
        except ValueError as error:
            print_row(meeting, case=case, unavailable=str(error))
            continue
        before = meeting.one_way_ns()
        times = samples_of(meeting, step, lambda: None, WARM_UPS, STEPS, seconds=60)
        ns = [before, meeting.one_way_ns()]
        print_row(meeting, case=case, manner="call", ns=ns, state=state_of(ns), tokens=tokens, **figures(times))
        del step
    meeting.barrier()
    hvd.shutdown()


main()
