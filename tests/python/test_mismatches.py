"""Every kind of disagreement: one rank calls otherwise, and all ranks are told which, with both values.

Each row of the table runs fresh, and again after ranks have agreed on that name before (the remembered form).
Who disagrees changes from row to row.
"""

import functools

import numpy as np
import rueda as hvd
from expect import raises, same
from worlds import ranks


def calls(function, usual, odd, *fragments, **both):
    """A row: all ranks call function(*usual), one function(*odd); a dict at the end are keywords."""

    def call(is_odd, name):
        arguments = odd if is_odd else usual
        keywords = dict(both)
        if arguments and isinstance(arguments[-1], dict):
            *arguments, more = arguments
            keywords.update(more)
        return function(*arguments, name=name, **keywords)

    return call, fragments


def dtype_rows(function, kind, *more, **both):
    pairs = (("float32", "float64"), ("float32", "float16"), ("int32", "int64"), ("uint8", "int8"))
    for one, other in pairs:
        yield (
            f"{kind} {other} among {one}",
            *calls(
                function,
                (np.ones(24, one), *more),
                (np.ones(24, other), *more),
                "Mismatched data types",
                f"{one}[24]",
                f"{other}[24]",
                **both,
            ),
        )


def shape_rows(function, kind, shapes, *more, **both):
    for one, other in shapes:
        yield (
            f"{kind} {other} among {one}",
            *calls(
                function,
                (np.ones(one, np.float32), *more),
                (np.ones(other, np.float32), *more),
                f"Mismatched {kind.upper()} tensor shapes",
                "float32" + str(list(one)).replace(" ", ""),
                "float32" + str(list(other)).replace(" ", ""),
                **both,
            ),
        )


def rows():
    """(what, call(is_odd, name), fragments) of each kind."""
    total = functools.partial(hvd.allreduce, op=hvd.Sum)
    scatter = functools.partial(hvd.reducescatter, op=hvd.Sum)
    whole = [((4,), (5,)), ((2, 3), (3, 2)), ((4,), (4, 1)), ((4,), (2, 2)), ((1,), (0,))]
    columns = [((24, 2), (24, 3)), ((24, 2), (24, 2, 1)), ((24, 2), (24,))]
    yield from dtype_rows(total, "allreduce")
    yield from dtype_rows(hvd.allgather, "allgather")
    yield from dtype_rows(hvd.broadcast, "broadcast", 0)
    yield from dtype_rows(scatter, "reducescatter")
    yield from dtype_rows(hvd.alltoall, "alltoall")
    yield from shape_rows(total, "allreduce", whole)
    yield from shape_rows(hvd.broadcast, "broadcast", whole, 0)
    yield from shape_rows(scatter, "reducescatter", [((24,), (48,)), *columns])
    yield from shape_rows(hvd.allgather, "allgather", columns)
    yield from shape_rows(hvd.alltoall, "alltoall", columns)
    value = np.ones(24, np.float32)
    names = {hvd.Sum: "sum", hvd.Max: "max", hvd.Min: "min", hvd.Product: "product"}
    for one, other in ((hvd.Sum, hvd.Max), (hvd.Min, hvd.Max), (hvd.Product, hvd.Sum), (hvd.Max, hvd.Product)):
        yield (
            f"allreduce {names[other]} among {names[one]}",
            *calls(
                hvd.allreduce,
                (value, {"op": one}),
                (value, {"op": other}),
                "Mismatched reduction operation",
                names[one],
                names[other],
            ),
        )
    for function in (hvd.allreduce, hvd.reducescatter):
        yield (
            f"{function.__name__} sum among average",
            *calls(function, (value, {"op": hvd.Average}), (value, {"op": hvd.Sum}), "Mismatched"),
        )
        for scale in ("prescale_factor", "postscale_factor"):
            for one, other in ((1.0, 2.0), (0.5, 0.25)):
                yield (
                    f"{function.__name__} {scale} {other} among {one}",
                    *calls(
                        function,
                        (value, {scale: one}),
                        (value, {scale: other}),
                        "Mismatched prescale and/or postscale factors",
                        f"{scale}={one:g}",
                        f"{scale}={other:g}",
                        op=hvd.Sum,
                    ),
                )
    yield (
        "broadcast from another root",
        *calls(
            hvd.broadcast, (value, 0), (value, 1), "Mismatched BROADCAST root ranks", "root rank 0", "root rank 1"
        ),
    )
    yield (
        "a group with another member's shape",
        *calls(
            hvd.grouped_allreduce,
            ([value, np.ones(3)],),
            ([value, np.ones(4)],),
            "Mismatched ALLREDUCE tensor shapes",
            "float64[3]",
            "float64[4]",
            op=hvd.Sum,
        ),
    )
    yield (
        "a group with another member's dtype",
        *calls(
            hvd.grouped_allreduce,
            ([value, value],),
            ([value, value.astype(np.float64)],),
            "Mismatched data types",
            "float32[24]",
            "float64[24]",
            op=hvd.Sum,
        ),
    )
    functions = {
        "allreduce": lambda name: hvd.allreduce(value, op=hvd.Sum, name=name),
        "allgather": lambda name: hvd.allgather(value, name=name),
        "broadcast": lambda name: hvd.broadcast(value, 0, name=name),
        "reducescatter": lambda name: hvd.reducescatter(value, op=hvd.Sum, name=name),
        "alltoall": lambda name: hvd.alltoall(value, name=name),
    }
    kinds = sorted(functions)
    for i, one in enumerate(kinds):
        for other in kinds[i + 1 :]:

            def call(is_odd, name, one=one, other=other):
                return functions[other if is_odd else one](name)

            yield f"{other} among {one} under one name", call, ("Mismatched operations", one, other)


def others_than(odd):
    numbers = [str(rank) for rank in range(hvd.size()) if rank != odd]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} "


@ranks(2, 3, 8)
def test_every_rank_is_told_who_disagrees_and_how():
    count = 0
    for remembered in (False, True):
        for number, (what, call, fragments) in enumerate(rows()):
            odd = number % hvd.size()
            name = f"{'again' if remembered else 'new'}.{number}"
            if remembered:
                for _ in range(2):
                    call(False, name)
            try:
                with raises(
                    hvd.HorovodInternalError, name, f"rank {odd} ", others_than(odd), *fragments
                ):
                    call(hvd.rank() == odd, name)
            except AssertionError as error:
                raise AssertionError(f"{what}, {'remembered' if remembered else 'new'}: {error}") from error
            count += 1
    assert count >= 2 * 60
    same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.full(1, float(hvd.size())))


@ranks(3)
def test_process_sets_that_differ():
    members = [0, 1] if hvd.rank() != 1 else [0, 2]
    with raises(hvd.HorovodInternalError, "Mismatched process sets", "[0, 1]", "[0, 2]", "rank 1 "):
        hvd.add_process_set(members)
    same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.full(1, 3.0))
