"""Ranks that disagree get one error, all of them; wrong calls fail at once on their rank alone."""

import numpy as np
import rueda as hvd
from expect import raises, same
from worlds import ranks

ONE = np.ones(2, np.float32)


def last():
    return hvd.rank() == hvd.size() - 1


def everyone_raises(name, *fragments):
    """Every rank gets HorovodInternalError with the fragments, and the runtime goes on working."""

    class Block:
        def __enter__(self):
            self.inner = raises(hvd.HorovodInternalError, *((name,) if name else ()), *fragments)
            self.inner.__enter__()

        def __exit__(self, *exception):
            handled = self.inner.__exit__(*exception)
            expected = np.full(1, float(hvd.size()))
            for _ in range(2):  # new and remembered
                same(hvd.allreduce(np.ones(1), name="after", op=hvd.Sum), expected)
            return handled

    return Block()


@ranks(2, 3)
def test_different_dtypes():
    for function in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall):
        value = np.ones(6, np.float64 if last() else np.float32)
        with everyone_raises("dtypes", "Mismatched data types", "float32", "float64"):
            function(value, name="dtypes")
    # Of the same bytes: neither is taken for the other.
    for one, other in (("uint16", "int16"), ("uint32", "int32"), ("uint64", "int64"), ("complex64", "float64")):
        value = np.ones(6, other if last() else one)
        with everyone_raises("dtypes", "Mismatched data types", f"{one}[6]", f"{other}[6]"):
            hvd.allreduce(value, name="dtypes")


@ranks(2, 3)
def test_different_shapes():
    value = np.ones((2, 3) if last() else (3, 2), np.float32)
    for function, kind in ((hvd.allreduce, "ALLREDUCE"), (hvd.reducescatter, "REDUCESCATTER")):
        fragment = f"Mismatched {kind} tensor shapes"
        with everyone_raises("shapes", fragment, "[2,3]", "[3,2]"):
            function(value, name="shapes")
    with everyone_raises("shapes", "Mismatched BROADCAST tensor shapes", "[2,3]", "[3,2]"):
        hvd.broadcast(value, 0, name="shapes")
    for function, kind in ((hvd.allgather, "ALLGATHER"), (hvd.alltoall, "ALLTOALL")):
        columns = np.ones((hvd.size(), 3 if last() else 2))
        with everyone_raises("rows", f"Mismatched {kind} tensor shapes"):
            function(columns, name="rows")


@ranks(2, 3)
def test_different_numbers_of_dimensions():
    value = np.ones((4, 1) if last() else 4)
    with everyone_raises("dims", "Mismatched ALLREDUCE tensor shapes", "[4]", "[4,1]"):
        hvd.allreduce(value, name="dims")
    with everyone_raises("dims", "Mismatched ALLGATHER tensor shapes"):
        hvd.allgather(value, name="dims")


@ranks(2, 3)
def test_different_operations_under_one_name():
    # The kind is part of the name in Python, so this needs the layer below.
    from rueda import _ffi
    from rueda._operation import Operation
    from rueda._runtime import runtime

    kind = _ffi.ALLGATHER if last() else _ffi.ALLREDUCE
    value = np.ones(4, np.float32)
    output = None if last() else value.ctypes.data
    operation = Operation(kind, _ffi.FLOAT32, value.ctypes.data, output, (4,))
    with everyone_raises("mixed", "Mismatched operations", "allreduce", "allgather"):
        runtime.synchronize(runtime.submit("any", "mixed", [operation], value, lambda requests: None))


@ranks(2, 3)
def test_different_reductions():
    with everyone_raises("ops", "Mismatched reduction operation", "sum", "max"):
        hvd.allreduce(ONE, name="ops", op=hvd.Max if last() else hvd.Sum)


@ranks(2, 3)
def test_different_scales():
    for scale in ("prescale_factor", "postscale_factor"):
        with everyone_raises("scales", "Mismatched prescale and/or postscale factors", "2", "3"):
            hvd.allreduce(ONE, name="scales", op=hvd.Sum, **{scale: 3.0 if last() else 2.0})


@ranks(2, 3)
def test_different_roots():
    with everyone_raises("roots", "Mismatched BROADCAST root ranks"):
        hvd.broadcast(ONE, hvd.size() - 1 if last() else 0, name="roots")


@ranks(2, 3)
def test_disagreement_inside_a_group():
    tensors = [np.ones(3), np.ones(5 if last() else 4)]
    with everyone_raises(None, "Mismatched ALLREDUCE tensor shapes"):
        hvd.grouped_allreduce(tensors, name="group")


@ranks(2, 3)
def test_groups_of_different_sizes():
    for function in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        for name in (None, "100 %"):
            for few, many in ((1, 2), (2, 3)):
                other = "outside a group" if few == 1 else f"of {few}"
                with everyone_raises(name, "Mismatched groups", other, f"of {many}"):
                    function([np.ones(4)] * (many if last() else few), name=name)
    for _ in range(5):  # remembered, and planned
        hvd.grouped_allreduce([np.ones(4)] * 3, name="planned")
    with everyone_raises("planned", "Mismatched groups", "of 2", "of 3"):
        hvd.grouped_allreduce([np.ones(4)] * (3 if last() else 2), name="planned")


@ranks(2, 3)
def test_a_tensor_and_a_group_under_one_name():
    for one, several in (
        (hvd.allreduce, hvd.grouped_allreduce),
        (hvd.allgather, hvd.grouped_allgather),
        (hvd.reducescatter, hvd.grouped_reducescatter),
    ):
        for many in (2, 3):
            with everyone_raises("both", "Mismatched groups", "outside a group", f"of {many}"):
                several([np.ones(4)] * many, name="both") if last() else one(np.ones(4), name="both")
            with everyone_raises(None, "Mismatched groups", "outside a group", f"of {many}"):
                several([np.ones(4)] * many) if last() else one(np.ones(4))
        # A group of one is nothing else than its tensor.
        for name in ("both", None):
            met = several([np.ones(4)], name=name)[0] if last() else one(np.ones(4), name=name)
            same(met, one(np.ones(4), name=name))


@ranks(2, 3)
def test_unnamed_tensors_and_groups_in_one_order():
    """A group counts as one operation; more are under way than there are numbers that go round."""
    import torch
    import rueda.torch as torch_hvd

    for hvd_of, make in ((hvd, np.full), (torch_hvd, lambda n, x: torch.full((n,), x))):
        handles = []
        for i in range(50):
            value = float(i * (hvd.rank() + 1))
            if i % 3 == 0:
                handles.append(hvd_of.allreduce_async(make(4, value), op=hvd.Sum))
            else:
                handles.append(hvd_of.grouped_allreduce_async([make(4, value)] * (1 + i % 4), op=hvd.Sum))
        ranks_in_all = hvd.size() * (hvd.size() + 1) / 2
        for i, handle in reversed(list(enumerate(handles))):
            result = hvd_of.synchronize(handle)
            for each in [result] if i % 3 == 0 else result:
                same(np.asarray(each, np.float64), np.full(4, i * ranks_in_all))


@ranks(2, 3)
def test_disagreement_after_agreement():
    """The remembered form of a tensor does not hide that one rank changed it."""
    for _ in range(3):
        hvd.allreduce(np.ones(4), name="changing", op=hvd.Sum)
    with everyone_raises("changing", "Mismatched ALLREDUCE tensor shapes"):
        hvd.allreduce(np.ones(5 if last() else 4), name="changing", op=hvd.Sum)
    same(hvd.allreduce(np.ones(5), name="changing", op=hvd.Sum), np.full(5, float(hvd.size())))


@ranks(2, 3)
def test_only_one_rank_calls_wrongly_and_the_others_do_not_notice():
    if hvd.rank() == 0:
        wrong_calls()
    same(hvd.allreduce(ONE, op=hvd.Sum), ONE * hvd.size())  # unnamed operations still pair up
    same(hvd.allgather(ONE), np.tile(ONE, hvd.size()))


@ranks(1)
def test_wrong_calls_of_a_job_of_one():
    wrong_calls()


def wrong_calls():
    size = hvd.size()
    for dtype in (np.clongdouble, ">f4", ">u4", "datetime64[s]", object):
        with raises(ValueError, "is not supported."):
            hvd.allreduce(np.zeros(2, dtype), op=hvd.Sum)
    with raises(ValueError):
        hvd.allreduce(ONE, average=True, op=hvd.Sum)
    with raises(ValueError, "op=17"):
        hvd.allreduce(ONE, op=17)
    for root in (-1, size):
        with raises(ValueError, "invalid root rank"):
            hvd.broadcast(ONE, root)
    for splits in (
        [1] * (size + 1),
        [-1] + [1] * (size - 1),
        [9] * size,
        [[1] * size],
        [0.5] * size,
    ):
        with raises(ValueError):
            hvd.alltoall(np.ones(8), splits)
    if size > 1:
        with raises(ValueError):
            hvd.alltoall(np.ones(size + 1))
    for op in (hvd.Min, hvd.Max, hvd.Product):
        with raises(hvd.HorovodInternalError, "only supports AVERAGE and SUM"):
            hvd.reducescatter(ONE, op=op)
        with raises(ValueError):
            hvd.reducescatter(ONE, op=op)
    with raises(ValueError, "does not support scalar inputs"):
        hvd.reducescatter(np.ones(()))
    for function in (hvd.allgather, hvd.alltoall):
        with raises(hvd.HorovodInternalError, "rank-zero tensor"):
            function(np.ones(()))
    with raises(ValueError, "does not exist"):
        hvd.allreduce(ONE, process_set=hvd.ProcessSet([0]))
    for peer in (-1, size, hvd.rank()):
        with raises(ValueError):
            hvd.send(ONE, peer)
        with raises(ValueError):
            hvd.recv(ONE, peer)
    with raises(ValueError):
        hvd.grouped_allreduce([])
    with raises(ValueError):
        hvd.broadcast_parameters(iter([ONE]), 0)
    with raises(ValueError):
        hvd.allreduce_([1.0, 2.0])
    frozen = np.ones(2)
    frozen.flags.writeable = False
    with raises(ValueError, "writable"):
        hvd.allreduce_(frozen)
    with raises(ValueError, "no/such/folder"):
        hvd.start_timeline("no/such/folder/{rank}.json")


@ranks(2)
def test_a_receive_of_another_size_is_an_error():
    if hvd.rank() == 0:
        try:
            hvd.send(np.ones(3), 1, tag=5)
        except hvd.HorovodInternalError:
            pass
    else:
        with raises(hvd.HorovodInternalError):
            hvd.recv(np.ones(4), 0, tag=5)
