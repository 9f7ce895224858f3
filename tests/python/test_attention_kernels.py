"""PyTorch's own CPU kernel behind rueda's attention, by the same oracle; which kernel serves, and why."""

import os
import subprocess
import sys

import pytest
import rueda as hvd
import rueda.attention as ra
import torch
from attention_oracle import blocks_of, causal, check, dense, dilated, error, inputs
from expect import raises
from rueda.attention import _groups
from worlds import ranks

WORLD = "torch"
LONG = 401  # tiles large enough for it


def _mask(left, right):
    i = torch.arange(LONG)
    return ((i[:, None] - i <= left) & (i - i[:, None] <= right)).float()[None]


@ranks(4)
def test_pytorchs_kernel_passes_the_same_tests():
    full = {"length": LONG, "batch": 1, "heads": 2, "kv_heads": 1}
    everything = torch.ones(1, LONG, LONG)
    ra.use_kernel("aten")
    for layout in ("contiguous", "zigzag"):
        check(lambda *x, **o: ra.ring_attention(*x, causal=True, **o), causal(LONG), layout, **full)
    for rotate in ("kv", "q"):
        check(lambda *x, **o: ra.ring_attention(*x, rotate=rotate, **o), everything, dim=33, **full)
    check(
        lambda *x, **o: ra.ring_attention(*x, window_size=(150, 40), **o), _mask(150, 40),
        "zigzag", **full,
    )  # fmt: skip
    check(lambda *x, **o: ra.ulysses_attention(*x, causal=True, **o), causal(LONG), **full)
    pairs = [(128, 1), (LONG, 2)]
    check(
        lambda *x, **o: ra.ring_dilated_attention(*x, *zip(*pairs), causal=True, **o),
        dilated(pairs, heads=2, n=LONG) * causal(LONG), **full,
    )  # fmt: skip
    mask = ra.BlockMask.random(LONG, 100, density=0.5, seed=3)
    check(lambda *x, **o: ra.ring_block_sparse_attention(*x, mask, **o), blocks_of(mask), **full)
    q, k, v, _ = (ra.shard_sequence(x) for x in inputs(**full))
    ra.use_kernel("native")
    own = ra.ring_attention(q, k, v, causal=True)
    ra.use_kernel("aten")
    theirs = ra.ring_attention(q, k, v, causal=True)
    assert not torch.equal(own, theirs)  # it was another kernel
    assert torch.equal(theirs, ra.ring_attention(q, k, v, causal=True))
    ra.use_kernel("auto")


def _errors(qkv, dout, wanted, layout, process_set):
    """Of output and gradients of a causal call, whose results are put together from all ranks."""
    one = {"layout": layout, "process_set": process_set}
    own = [ra.shard_sequence(x, **one).requires_grad_() for x in qkv]
    out = ra.ring_attention(*own, causal=True, **one)
    out.backward(ra.shard_sequence(dout, **one))
    got = [ra.unshard_sequence(x, length=LONG, **one) for x in (out.detach(), *(x.grad for x in own))]
    return [error(mine, full) for mine, full in zip(got, wanted)]


@ranks(4)
def test_its_errors_in_bfloat16_do_not_grow_with_the_ranks():
    ra.use_kernel("aten")
    *qkv, dout = inputs(length=LONG, dim=64, batch=1, dtype=torch.bfloat16)
    whole = [x.double().requires_grad_() for x in qkv]
    out, _ = dense(*whole, causal(LONG))
    out.backward(dout.double())
    wanted = [out.detach(), *(x.grad for x in whole)]
    alone = _errors(qkv, dout, wanted, "contiguous", _groups.local)
    four = _errors(qkv, dout, wanted, "zigzag", hvd.global_process_set)
    for one, more in zip(alone, four):
        assert one <= 5e-3 and more <= 1.5 * one, (alone, four)
    ra.use_kernel("auto")


def test_which_kernel_serves_is_said_with_the_reason():
    auto = ra.kernel_for("float32", 64)
    assert auto.name == "native" and "highest priority" in auto.why and "aten" in auto.why
    ra.use_kernel("aten")
    assert ra.kernel_for(torch.bfloat16) == ("aten", "asked for by name (RUEDA_ATTENTION_KERNEL)")
    ra.use_kernel("measured")
    measured = ra.kernel_for("float32", 60)
    assert measured.name in ("native", "aten")
    assert measured.why.startswith("measured at head_dim 64: native ") and " us" in measured.why
    assert ra.kernel_for("float32", 64) == measured  # once
    ra.use_kernel()
    assert ra.kernel_for("float32", 64) == auto
    with pytest.raises(ValueError, match="expected one of 'float32'"):
        ra.kernel_for("float64")
    with pytest.raises(ValueError, match="1 to 256"):
        ra.kernel_for("float32", 257)
    with raises(ValueError, "'fastest': this machine has auto, measured"):
        ra.use_kernel("fastest")


WITHOUT_A_JOB = """
import numpy as np, rueda, rueda.attention as ra
rows = np.ones((1, 4, 1, 8), np.float32)
try:
    print(ra.kernel_for().why)
    ra.dilated_attention(rows, rows, rows, [4], [1])
    ra.use_kernel("auto")
    rueda.init()
    print(ra.kernel_for().why)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "setting, said",
    [
        ({"RUEDA_ATTENTION_KERNEL": "native"}, ["asked for by name", "highest priority"]),
        ({"RUEDA_ATTENTION_KERNEL": "fastest"}, ["RUEDA_ATTENTION_KERNEL='fastest': this machine has auto"]),
        ({"RUEDA_CHECK_PROGRAMS": "sometimes"}, ["RUEDA_CHECK_PROGRAMS='sometimes': expected 0 or 1"]),
    ],
)
def test_settings_are_read_without_a_job_and_use_kernel_is_stronger(setting, said):
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_JOB], env={**os.environ, **setting}, capture_output=True, text=True, timeout=300
    )
    lines = run.stdout.splitlines()
    assert len(lines) == len(said) and all(part in line for part, line in zip(said, lines)), run.stdout + run.stderr
