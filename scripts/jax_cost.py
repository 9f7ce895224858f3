#!/usr/bin/env python3
"""Measures what collectives of JAX arrays cost, beside JAX's own (gloo) and NumPy's, in turns in the same processes.

    ruedarun -np 2 python scripts/jax_cost.py [--rounds 9] [--json FILE]

Nothing else may run meanwhile, and there must be a core for each rank. Every figure is the median over the rounds. "gloo" is
`jax.lax.psum` over one device of each process, "rueda" `rueda.jax.allreduce`, both jitted and waited for, "NumPy" `rueda.allreduce`; "x + x" is what JAX costs without a collective.
"""
import argparse
import json
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rueda
import rueda.jax as hvd

SIZES = ((4, 200), (4 << 10, 200), (1 << 20, 60), (64 << 20, 4))  # bytes, calls in a round
GOALS = {4: 1.0, 4 << 10: 1.5, 1 << 20: 1.5, 64 << 20: 1.0}  # times as fast as gloo, at least
NUMPY_GOAL, GROUP_GOAL, WAIT_GOAL = 5.0, 1.5, 0.02
GRADIENTS, GRADIENT = 32, 16 << 10  # 32 of 64 KiB, computed by the program that reduces them
WAIT = 2.0  # seconds


def gloo_sum(size):
    """A jitted psum over all processes, and its input."""
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    spread = NamedSharding(mesh, PartitionSpec("ranks"))
    own = jnp.ones((1, size), jnp.float32)
    whole = jax.make_array_from_single_device_arrays((hvd.size(), size), spread, [own])
    summed = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=PartitionSpec("ranks"), out_specs=PartitionSpec()
        )
    )
    return lambda: jax.block_until_ready(summed(whole))


def rueda_sum(shapes, name, computed=lambda x: x):
    data = [jnp.ones(shape, jnp.float32) for shape in shapes]
    summed = jax.jit(lambda x: hvd.allreduce(jax.tree.map(computed, x), op=hvd.Sum, name=name))
    return lambda: jax.block_until_ready(summed(data))


def eager_sum(size, name):
    data = jnp.ones(size, jnp.float32)
    return lambda: jax.block_until_ready(hvd.allreduce(data, op=hvd.Sum, name=name))


def numpy_sum(size, name):
    data = np.ones(size, np.float32)
    return lambda: rueda.allreduce(data, op=rueda.Sum, name=name)


def nothing():
    """A jitted computation without a collective: what JAX itself costs."""
    data, doubled = jnp.ones(1, jnp.float32), jax.jit(lambda x: x + x)
    return lambda: jax.block_until_ready(doubled(data))


def microseconds(call, times):
    """Of a call that comes again and again: a quarter of as many go before, in which what repeats becomes planned."""
    for _ in range(max(3, times // 4)):
        call()
    rueda.barrier()
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return 1e6 * (time.perf_counter() - begun) / times


def compare(calls, times, rounds):
    """{what: microseconds}, the kinds of call taking turns."""
    found = {what: [] for what in calls}
    for _ in range(rounds):
        for what, call in calls.items():
            found[what].append(microseconds(call, times))
    return {what: statistics.median(each) for what, each in found.items()}


def waiting():
    """The share of a core that rank 0 uses while a computation waits for rank 1."""
    call = rueda_sum([(256,)], "cost.waiting")
    call()
    shares = []
    for _ in range(3):
        rueda.barrier()
        if rueda.rank() == 1:
            time.sleep(WAIT)
        begun, used = time.perf_counter(), time.process_time()
        call()
        shares.append((time.process_time() - used) / (time.perf_counter() - begun))
    return statistics.median(shares)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    hvd.init()
    hvd.initialize_distributed()
    lines, results = [], {}
    for size, times in SIZES:
        count = size // 4
        calls = {"gloo": gloo_sum(count), "rueda": rueda_sum([(count,)], f"cost.{size}"), "NumPy": numpy_sum(count, f"np.{size}")}
        if size == 4:
            calls.update({"outside of jit": eager_sum(count, "cost.eager"), "x + x": nothing()})
        found = results[size] = compare(calls, times, options.rounds)
        ratio, goal = found["gloo"] / found["rueda"], GOALS[size]
        said = ", ".join(f"{what} {value:.0f}" for what, value in found.items())
        lines.append(f"{size:>9} bytes, us: {said}; {ratio:.2f} times as fast as gloo (goal {goal})")
    for what in ("rueda", "outside of jit"):
        of_numpy, of_nothing = (results[4][what] / results[4][other] for other in ("NumPy", "x + x"))
        lines.append(
            f"4 bytes, {what}: {of_numpy:.1f} times NumPy's (goal {NUMPY_GOAL:.0f} at most), {of_nothing:.1f} times x + x"
        )
    many = rueda_sum([(GRADIENT,)] * GRADIENTS, "cost.many", jnp.sin)
    one = rueda_sum([(GRADIENT * GRADIENTS,)], "cost.one", jnp.sin)
    found = results["gradients"] = compare({"a call of many": many, "one buffer": one}, 60, options.rounds)
    ratio = found["a call of many"] / found["one buffer"]
    lines.append(f"{GRADIENTS} gradients of 64 KiB in one call: {ratio:.2f} times one buffer (goal {GROUP_GOAL} at most)")
    share = results["waiting"] = waiting()
    lines.append(f"waiting costs {100 * share:.1f} % of a core (goal {100 * WAIT_GOAL:.0f} % at most)")
    if rueda.rank() == 0:
        print(f"jax {jax.__version__}, {rueda.size()} ranks on {os.cpu_count()} cores")
        print("\n".join(lines), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(results, file)
    rueda.barrier()
    jax.distributed.shutdown()


main()
