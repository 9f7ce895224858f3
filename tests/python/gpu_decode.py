"""`decode_attention` on a GPU, for ``gpu_attention.py decode``: libraries' kernels for caches and PyTorch's operations, plain and paged caches,
masks and dtypes, against dense attention in float64; PyTorch sees no host wait in a call."""

import contextlib

import rueda.attention as ra
import torch
from rueda.attention import device as on_device
from rueda.attention._groups import local
from rueda.attention.device import _cache_kernels, _ring

LENGTHS = [700, 1, 0, 513]
CASES = [
    ("all keys", 1, {}),
    ("several new tokens", 4, {}),
    ("softcap", 2, {"softcap": 5.0, "causal": False}),
    ("a window", 2, {"window_size": (200, -1), "global_tokens": 4}),
    ("ALiBi", 2, {"alibi_slopes": [0.1, 0.2, 0.3, 0.4]}),
    ("sinks", 1, {"sinks": [0.5, 1.0, -1.0, 2.0]}),
]


def wanted(q, keys, values, lengths, options):
    """Of whole sequences, in float64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for b, length in enumerate(lengths):
        if not length:
            continue
        k, v = (x[b, :length].double().repeat_interleave(q.shape[2] // x.shape[2], 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[b].double(), k) * q.shape[3] ** -0.5
        cap = options.get("softcap")
        scores = cap * torch.tanh(scores / cap) if cap else scores
        behind = torch.arange(length) - (length - q.shape[1] + torch.arange(q.shape[1]))[:, None]
        if "alibi_slopes" in options:
            scores = scores - torch.tensor(options["alibi_slopes"], dtype=torch.float64)[:, None, None] * behind.abs()
        hidden = (behind > 0) & options.get("causal", True)
        if "window_size" in options:
            hidden |= (behind < -options["window_size"][0]) & (torch.arange(length) >= options["global_tokens"])
        scores = scores.masked_fill(hidden, -torch.inf)
        if "sinks" in options:
            sinks = torch.tensor(options["sinks"], dtype=torch.float64)[:, None, None].expand(-1, q.shape[1], 1)
            scores = torch.cat([scores, sinks], -1)
        out[b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], v)
    return out


@contextlib.contextmanager
def no_waits(where):
    """A call that waits for the GPU fails."""
    if where == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def exact(options):
    """How many are wrong."""
    before, _ring._on_cpu = _ring._on_cpu, options.device == "cpu"
    try:
        libraries = [x.name for x in _cache_kernels.KERNELS if x.refuses(options.device, torch.float16, 64, None) is None]
        wrong = _exact(options.device, "auto", libraries) if libraries else 0
        return wrong + _exact(options.device, "torch", [])
    finally:
        _ring._on_cpu = before
        on_device.use_kernel("auto", device=options.device)


def _exact(where, name, libraries):
    on_device.use_kernel(name, device=where)
    wrong, most = 0, 768
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        largest = 0.0
        for what, tokens, given in CASES:
            lengths = [0 if n < tokens else n for n in LENGTHS]
            torch.manual_seed(1)
            q = torch.randn(len(lengths), tokens, 4, 64).to(dtype)
            k, v = (torch.randn(len(lengths), most, 2, 64).to(dtype) for _ in range(2))
            right = wanted(q, k, v, lengths, given)
            there = [x.to(where) for x in (q, k, v)]
            order = torch.randperm(len(lengths) * 3)
            pages = []
            for x in there[1:]:
                shuffled = torch.empty_like(x).view(-1, 256, 2, 64)
                shuffled[order.to(where)] = x.view(-1, 256, 2, 64)
                pages.append(shuffled)
            table = order.view(len(lengths), 3).to(torch.int32).to(where)
            forms = [(there, {}), ([there[0], *pages], {"block_table": table})]
            for tensors, more in forms:
                ra.decode_attention(*tensors, lengths, process_set=local, **given, **more)  # what is made once
                with no_waits(where):
                    out = ra.decode_attention(*tensors, lengths, process_set=local, **given, **more)
                error = float((out.cpu().double() - right).norm() / right.norm())
                largest = max(largest, error)
                if error > {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]:
                    wrong += 1
                    print(f"WRONG: decoding, {name}, {what}, {'paged' if more else 'plain'}, {str(dtype)[6:]}: {error:.1e}", flush=True)
        if not wrong:
            by = " and ".join([*libraries, "torch"])
            print(f"right: decoding by {by}, {str(dtype)[6:]}: relative errors to {largest:.1e}", flush=True)
    return wrong
