"""Steps of data-parallel training with rueda and with PyTorch's DistributedDataParallel, in turns in the same processes.

    ruedarun -np 2 python tests/python/gpu_training.py resnet50 | gpt2 | tiny  [--device cuda] [--rounds N] [--steps N]

Started by ``scripts/gpu_check``. Rank 0 prints the median of each one's rounds; exits with 1 if rueda's step takes longer (2 % are
the measurement's), or if PyTorch sees it wait for the GPU within a step. ``--device cpu`` compares with Gloo, to see that it is whole.
"""

import argparse
import statistics
import sys
import time

import gpu_sharing
import torch
from torch.nn import functional

import rueda.torch as hvd

MOST = 1.02  # of DDP's time


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """GPT-2's shape: 124 million parameters as small, tied embeddings."""

    def __init__(self, layers=12, width=768, heads=12, words=50257, length=1024):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return functional.linear(self.norm(self.blocks(x)), self.words.weight)


def text(batch, length, words, device):
    tokens = torch.randint(words, (batch, length + 1), device=device)
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


def case(name, device):
    """(how a model is made, input, labels)"""
    torch.manual_seed(100 + hvd.rank())
    if name == "resnet50":
        import torchvision

        images = torch.randn(32, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (32,), device=device)
        return lambda: torchvision.models.resnet50().to(memory_format=torch.channels_last), images, labels
    if name == "gpt2":
        return (Gpt, *text(4, 512, 50257, device))
    return (lambda: Gpt(2, 32, 2, 100, 16), *text(2, 16, 100, device))


def trained_by(step, optimizer, model, data, labels):
    kind = data.device.type

    def go():
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16):
            out = model(data)
        functional.cross_entropy(out.float().view(len(labels), -1), labels).backward()
        step()

    return go


def prepared(options):
    """A step with DDP and one with rueda."""
    make, data, labels = case(options.what, options.device)
    torch.manual_seed(7)
    ours = make().to(options.device)
    theirs = make().to(options.device)
    theirs.load_state_dict(ours.state_dict())
    ids = [torch.cuda.current_device()] if options.device == "cuda" else None
    theirs = torch.nn.parallel.DistributedDataParallel(theirs, device_ids=ids)
    plain = torch.optim.SGD(theirs.parameters(), lr=1e-4)
    own = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=1e-4), named_parameters=ours.named_parameters())
    return trained_by(plain.step, plain, theirs, data, labels), trained_by(own.step, own, ours, data, labels)


def seconds(step, steps, device):
    def settle():
        if device == "cuda":
            torch.cuda.synchronize()

    settle()
    hvd.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    settle()
    return (time.perf_counter() - begun) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["resnet50", "gpt2", "tiny"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    gpu_sharing.prepare()
    hvd.init()
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(store.port if store else None)
    store = store or torch.distributed.TCPStore("127.0.0.1", port, None, False)
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    ddp, own = prepared(options)
    for step in (ddp, own):
        seconds(step, 15, options.device)
    times = {ddp: [], own: []}
    for _ in range(options.rounds):
        for step, found in times.items():
            found.append(seconds(step, options.steps, options.device))
    theirs, ours = (1e3 * statistics.median(found) for found in times.values())
    waits = ""
    if on_gpu:
        torch.cuda.set_sync_debug_mode("error")
        try:
            own()
        except RuntimeError as error:
            waits = f"; the host waits for the GPU: {error}"
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    slower = hvd.allreduce(torch.tensor(float(ours > MOST * theirs)), op=hvd.Max, name="slower").item()
    if hvd.rank() == 0:
        print(f"{options.what}: DDP {theirs:.2f}, rueda {ours:.2f} ms a step, {ours / theirs:.3f} of it{waits}", flush=True)
    hvd.barrier()
    torch.distributed.destroy_process_group()
    hvd.shutdown()
    return 1 if on_gpu and (slower or waits) else 0


if __name__ == "__main__":
    sys.exit(main())
