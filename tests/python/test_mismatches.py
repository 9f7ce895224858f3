"""Every kind of disagreement: one rank calls otherwise, and all ranks are told which, with both values, and
the lines of the program that disagree.

Each row of the table runs fresh, and again after ranks have agreed on that name before (the remembered form).
Who disagrees changes from row to row.
"""

import functools
import pathlib
import re

import numpy as np
import rueda as hvd
from expect import raises, same
from worlds import ranks


FILE = pathlib.Path(__file__)
LINES = FILE.read_text().splitlines()


def line_of(mark):
    """Of this file, where the comment stands."""
    return 1 + next(i for i, line in enumerate(LINES) if line.endswith("# " + mark))


def message_of(call):
    try:
        call()
    except hvd.HorovodInternalError as error:
        return str(error)
    raise AssertionError("it did not fail")


def sides(text):
    """[(ranks, what they sent, place)] of an error's text."""
    parts = re.findall(r"ranks? ([\d, ]+) sent (.*?) at \S*?(test_\w+\.py:\d+ in \S+?)(?=;)", text)
    return [([int(rank) for rank in ranks.split(",")], sent, place) for ranks, sent, place in parts]


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
    pairs = (("float32", "float64"), ("float32", "float16"), ("int32", "int64"), ("uint8", "int8"), ("uint32", "int32"))
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
                    text = message_of(functools.partial(call, hvd.rank() == odd, name))
                    everyone = sorted(rank for ranks, _, _ in sides(text) for rank in ranks)
                    assert everyone == list(range(hvd.size())), f"places are missing: {text}"
                    raise hvd.HorovodInternalError(text)
            except AssertionError as error:
                raise AssertionError(f"{what}, {'remembered' if remembered else 'new'}: {error}") from error
            count += 1
    assert count >= 2 * 60
    same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.full(1, float(hvd.size())))


@ranks(3)
def test_process_sets_that_differ():
    members = [0, 1] if hvd.rank() != 1 else [0, 2]
    with raises(hvd.HorovodInternalError, "Mismatched process sets", "[0, 1]", "[0, 2]", "rank 1 ", "test_mismatches.py:"):
        hvd.add_process_set(members)
    same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.full(1, 3.0))


@ranks(2, 3)
def test_the_lines_that_disagree_are_named():
    odd = hvd.size() - 1
    others = [rank for rank in range(hvd.size()) if rank != odd]
    for name in ("fresh", "again"):
        if name == "again":
            for _ in range(3):
                hvd.allreduce(np.ones(2), name=name)

        def one():
            if hvd.rank() == odd:
                hvd.allreduce(np.ones(3), name=name)  # the odd one
            else:
                hvd.allreduce(np.ones(2), name=name)  # the others

        text = message_of(one)
        one_place = f"{FILE.name}:{line_of('the odd one')} in one"
        expected = [
            (others, "float64[2]", f"{FILE.name}:{line_of('the others')} in one"),
            ([odd], "float64[3]", one_place),
        ]
        if name == "again":  # the others' is persistent, with the place of its second time
            assert sides(text)[0][:2] == expected[0][:2], text
            assert sides(text)[1] == expected[1], text
        else:
            assert sides(text) == expected, text


@ranks(3)
def test_ranks_that_agree_from_different_lines_are_told_apart():
    if hvd.rank() == 0:
        call = lambda: hvd.allreduce(np.ones(2), name="lines")  # noqa: E731 # first
    elif hvd.rank() == 1:
        call = lambda: hvd.allreduce(np.ones(2), name="lines")  # noqa: E731 # second
    else:
        call = lambda: hvd.allreduce(np.ones(3), name="lines")  # noqa: E731 # third
    text = message_of(call)
    first, second, third = (
        f"{FILE.name}:{line_of(mark)} in <lambda>" for mark in ("first", "second", "third")
    )
    assert re.search(rf"ranks 0, 1 sent float64\[2\] at \S*{first} \(rank 0\), at \S*{second} \(rank 1\); ", text), text
    assert re.search(rf"rank 2 sent float64\[3\] at \S*{third}; ", text), text
