"""rueda.jax beside what else a JAX program does: threads, donated buffers, jax.distributed, forks, another init."""

import sys

import pytest
from worlds import launch, ranks, results, run_ranks

pytest.importorskip("jax")
WORLD = "jax"


@ranks(2)
def test_one_program_in_two_threads_at_once():
    import threading

    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n = hvd.size()
    program = jax.jit(lambda x: hvd.allreduce(jnp.sin(x) * 0 + x, hvd.Sum, name="of.both"))
    x = jnp.ones((300, 300))
    program(x).block_until_ready()
    together = threading.Barrier(2)
    seen = [[], []]

    def run(mine):
        together.wait()
        for _ in range(20):  # equal on all ranks, as their turns are not
            mine.append(program(x))

    threads = [threading.Thread(target=run, args=(mine,)) for mine in seen]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for mine in seen:
        assert [float(each[0, 0]) for each in mine] == [n] * 20


@ranks(2)
def test_donated_buffers():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()

    def step(a, b):
        return hvd.allreduce(a, hvd.Sum), hvd.allreduce(b + 1, hvd.Sum), hvd.broadcast(a, 1)

    donated = jax.jit(step, donate_argnums=(0, 1))
    for size in (3, 4096, 1 << 20):
        a, b = jnp.full(size, r + 1.0), jnp.full(size, float(r))
        sums, more, of_1 = donated(a, b)
        assert a.is_deleted() or b.is_deleted()
        np.testing.assert_array_equal(sums, np.full(size, n * (n + 1) / 2))
        np.testing.assert_array_equal(more, np.full(size, n * (n + 1) / 2))
        np.testing.assert_array_equal(of_1, np.full(size, 2.0))


@ranks(2)
def test_a_rank_that_traces_alone_changes_nothing():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax_programs import calls_of

    program = jax.jit(lambda x: hvd.allgather(hvd.allreduce(x[None], hvd.Sum)))
    if hvd.rank() == 0:
        for size in range(3):
            assert jax.eval_shape(program, jnp.zeros(size)).shape == (hvd.size(), size)
            program.lower(jnp.zeros(size))
    names = hvd.allgather_object(calls_of(program, jnp.zeros(4)))
    assert names[0] == names[1]
    assert program(jnp.ones(4)).tolist() == [[2] * 4] * 2


def beside_jax_distributed():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rueda.jax as hvd
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    hvd.initialize_distributed()
    n, r = hvd.size(), hvd.rank()
    assert (jax.process_count(), jax.process_index(), len(jax.local_devices())) == (n, r, 1)
    mine = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(jnp.full(3, r + 1.0))
    assert mine.tolist() == [3] * 3
    # JAX's own collective and rueda's in one program, a device of each process.
    mesh = Mesh(np.array(jax.devices()), "all")
    part = NamedSharding(mesh, PartitionSpec("all"))
    x = jax.make_array_from_process_local_data(part, np.full(2, r + 1.0, np.float32))
    both = jax.jit(
        jax.shard_map(
            lambda x: lax.psum(x, "all") + hvd.allreduce(x, hvd.Sum),
            mesh=mesh,
            in_specs=PartitionSpec("all"),
            out_specs=PartitionSpec("all"),
            check_vma=False,
        )
    )(x)
    assert both.addressable_shards[0].data.tolist() == [6, 6]
    with pytest.raises(ValueError, match="spread over 2 devices"):
        jax.jit(lambda x: hvd.allreduce(x)).lower(x)
    return r


def test_beside_jax_distributed():
    assert results(run_ranks(2, beside_jax_distributed)) == [0, 1]


AGAIN = """
import os
import jax, jax.numpy as jnp
import rueda
import rueda.jax as hvd
rueda.init()
traced = []
step = jax.jit(lambda x: (traced.append(1), hvd.allreduce(x, hvd.Sum))[1])
assert step(jnp.ones(2)).tolist() == [rueda.size()] * 2
rueda.init()  # again in the same world: nothing is made anew
assert step(jnp.ones(2)).tolist() == [rueda.size()] * 2 and len(traced) == 1
child = os.fork()
if child == 0:
    try:
        step(jnp.ones(2)).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        os._exit(3 if "forked from a rank" in str(error) else 4)
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
rueda.shutdown()
try:
    step(jnp.ones(2)).block_until_ready()
    raise SystemExit("it has reduced")
except jax.errors.JaxRuntimeError as error:
    assert "call init again" in str(error), error
rueda.init()
assert step(jnp.ones(2)).tolist() == [rueda.size()] * 2
print("reduced again")
"""


def test_after_another_init_and_in_a_forked_child():
    code, output = launch(2, [sys.executable, "-W", "ignore", "-c", AGAIN])
    assert code == 0 and output.count("reduced again") == 2, output
