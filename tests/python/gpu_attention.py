"""Attention on a GPU, for ``scripts/gpu_check``: every kernel that can be used against dense attention, virtual rings, speeds.

    python tests/python/gpu_attention.py exact | own | ring | speed  [--device cuda] [--tokens N] [--ranks P]

Prints one line for each result; exits with 1 if one is wrong, 77 where there is no GPU. ``own`` is `exact` of rueda's own kernel alone,
small, for compute-sanitizer. ``--device cpu`` runs the same code without a GPU, to see that it is whole.
"""

import argparse
import statistics
import sys
import time

import rueda.attention as ra
import torch
from rueda.attention import device as on_device
from rueda.attention.device import _kernels
from rueda.attention.device._scores import Scores

RING_FORWARD, RING_BOTH = 0.88, 0.92  # of one call's speed, 8 ranks
LOCAL_FORWARD, LOCAL_BACKWARD = 600, 500  # TFLOP/s, causal 8k, bfloat16


SLOPES = (0.5, 0.25, 0.0625, -0.125)
# What scores become, and the layout of four ranks.
CHANGES = [
    ("", {}, "zigzag"),
    (", softcap", {"softcap": 2.0}, "zigzag"),
    (", ALiBi", {"alibi_slopes": SLOPES}, "zigzag"),
    (", ALiBi", {"alibi_slopes": SLOPES}, "striped"),
]


def dense(q, k, v, causal, softcap=0.0, alibi_slopes=None):
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    n = q.shape[1]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        place = torch.arange(n, device=q.device, dtype=torch.float64)
        slopes = torch.tensor(alibi_slopes, device=q.device, dtype=torch.float64)
        scores = scores - slopes[:, None, None] * (place[:, None] - place).abs()
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, device=q.device).triu(1).bool(), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def tensors(where, dtype, tokens, heads, kv_heads, dim):
    torch.manual_seed(3)
    shapes = [(1, tokens, h, dim) for h in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, dtype=torch.float32, device=where).to(dtype) for shape in shapes]


def error(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


def results(qkv, dout, ranks, layout, causal, **changes):
    """Output and gradients of a virtual ring."""
    ring = ra.VirtualRing(ranks)
    full = [x.clone().requires_grad_() for x in qkv]
    outs = ring.attention(*(ring.shard(x, layout=layout) for x in full), layout=layout, causal=causal, **changes)
    out = ring.unshard(outs, layout=layout)
    out.backward(dout)
    return [out.detach(), *(x.grad for x in full)]


def usable(where):
    """Names of the kernels of this device for each dtype."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kernel, why in _kernels._candidates(where, dtype, 64)[1]:
            if why is None:
                yield kernel.name, dtype


def has(name, dtype, where, changes):
    """Whether the kernel can make that of scores."""
    kernel = next(k for k, _ in _kernels._candidates(where, dtype, 64)[1] if k.name == name)
    return kernel.lacks(Scores(changes.get("softcap", 0.0), changes.get("alibi_slopes"))) is None


def exact(options, only=None):
    wrong = 0
    tokens = min(options.tokens, 700)
    for name, dtype in list(usable(options.device)):
        if only is not None and name != only:
            continue
        on_device.use_kernel(name, device=options.device)
        calls = [(dim, *CHANGES[0]) for dim in (64, 128, 72)]
        calls += [(64, *change) for change in CHANGES[1:] if has(name, dtype, options.device, change[1])]
        for dim, said, changes, layout in calls:
            *qkv, dout = tensors(options.device, dtype, tokens, 4, 2, dim)
            whole = [x.double().requires_grad_() for x in qkv]
            out = dense(*whole, True, **changes)
            out.backward(dout.double())
            wanted = [out.detach(), *(x.grad for x in whole)]
            one = [error(*pair) for pair in zip(results(qkv, dout, 1, "contiguous", True, **changes), wanted)]
            many = [error(*pair) for pair in zip(results(qkv, dout, 4, layout, True, **changes), wanted)]
            # 16-bit libraries round every part's gradients: 1.5 roundings for 4 parts.
            floor = 1e-5 if dtype == torch.float32 else 1e-2 if dtype == torch.bfloat16 else 2e-3
            if changes.get("softcap") and name.startswith("flash"):
                floor = max(floor, 4e-3)  # the hardware's tanh
            right = all(a <= floor for a in one) and all(b <= 2 * a + 1e-5 for a, b in zip(one, many))
            wrong += not right
            print(
                f"{'right' if right else 'WRONG'}: {name} {str(dtype)[6:]} head_dim {dim}{said}: relative errors "
                f"{', '.join(f'{x:.1e}' for x in one)}; 4 ranks {', '.join(f'{x:.1e}' for x in many)}",
                flush=True,
            )
        on_device.use_kernel("auto", device=options.device)
    return wrong


def median_seconds(call, where, rounds=5):
    times = []
    for i in range(rounds + 2):
        if where != "cpu":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if where != "cpu":
            torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def local_calls(q, k, v, dout):
    """Forward and backward of one kernel call of the whole problem."""
    kernel = _kernels.Chosen(q).main
    scale = q.shape[-1] ** -0.5
    if not hasattr(kernel, "forward"):
        raise SystemExit(f"no library's kernel can be used here: {ra.kernel_for(q.dtype, q.shape[-1], device=q.device)}")
    out, lse = kernel.forward(q, k, v, scale, True)
    return (
        kernel.name,
        lambda: kernel.forward(q, k, v, scale, True),
        lambda: kernel.backward(dout, q, k, v, out, lse, scale, True),
    )


def speed(options):
    heads, kv_heads, dim = options.heads
    q, k, v, dout = tensors(options.device, torch.bfloat16, options.tokens, heads, kv_heads, dim)
    name, forward, backward = local_calls(q, k, v, dout)
    work = 2 * options.tokens**2 * heads * dim * 1e-12
    found = work / median_seconds(forward, options.device), 2.5 * work / median_seconds(backward, options.device)
    enough = found[0] >= LOCAL_FORWARD and found[1] >= LOCAL_BACKWARD
    print(f"{name}: causal {options.tokens} tokens: {found[0]:.0f} / {found[1]:.0f} TFLOP/s")
    return 0 if enough or options.device == "cpu" else 1


def ring(options):
    heads, kv_heads, dim = options.heads
    length = options.tokens * options.ranks
    q, k, v, dout = tensors(options.device, torch.bfloat16, length, heads, kv_heads, dim)
    name, forward, backward = local_calls(q, k, v, dout)
    one = median_seconds(forward, options.device), median_seconds(backward, options.device)
    del forward, backward
    world = ra.VirtualRing(options.ranks)
    shards = [[y.requires_grad_() for y in world.shard(x, layout="zigzag")] for x in (q, k, v)]
    douts = world.shard(dout, layout="zigzag")
    del q, k, v, dout

    def go():
        return world.attention(*shards, layout="zigzag", causal=True)

    def both():
        torch.autograd.grad(go(), [x for side in shards for x in side], douts)

    with torch.no_grad():
        only_forward = median_seconds(go, options.device)
    ratios = one[0] / only_forward, sum(one) / median_seconds(both, options.device)
    enough = ratios[0] >= RING_FORWARD and ratios[1] >= RING_BOTH
    print(
        f"{name}: {options.ranks} virtual ranks of {options.tokens} tokens against one call: {ratios[0]:.3f} forward, "
        f"{ratios[1]:.3f} forward and backward"
    )
    return 0 if enough or options.device == "cpu" else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["exact", "own", "ring", "speed"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=8192, help="of a rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--heads", type=lambda text: tuple(map(int, text.split(","))), default=(64, 8, 128))
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print("this PyTorch sees no GPU")
        return 77
    if options.device == "cpu" and options.what != "exact":
        on_device.use_kernel("cpu", device="cpu")
    if options.what == "own":
        options.tokens = min(options.tokens, 200)
        return min(1, exact(options, "cuda"))
    return min(1, {"exact": exact, "ring": ring, "speed": speed}[options.what](options))


if __name__ == "__main__":
    sys.exit(main())
