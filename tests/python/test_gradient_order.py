"""Ranks whose backward passes come to named collectives in different orders."""

import contextlib
import threading

import rueda.torch as hvd
import torch
from rueda.torch import _compiler
from worlds import ranks

WORLD = "torch"


@contextlib.contextmanager
def gathers_come_in_order(names):
    """Threads of these names start their unnamed allgathers one after another; named ones start at once."""
    from rueda._collectives import Collectives

    gather, turn = Collectives._gather, threading.Condition()
    waiting = list(names)

    def in_turn(self, kind, tensors, name, *arguments, **options):
        me = threading.current_thread().name
        if name is not None or me not in names:
            return gather(self, kind, tensors, name, *arguments, **options)
        with turn:
            assert turn.wait_for(lambda: waiting[:1] == [me], 60)
            handle = gather(self, kind, tensors, name, *arguments, **options)
            waiting.pop(0)
            turn.notify_all()
            return handle

    Collectives._gather = in_turn
    try:
        yield
    finally:
        Collectives._gather = gather


def in_threads(functions):
    """Runs {name: function}, each in a thread of that name; raises the first error."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, name=n, args=(f,)) for n, f in functions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def rows_of(name):
    """This rank's rows and where they begin; both differ between the two names."""
    counts = {"a": [1, 4], "b": [3, 2]}[name]
    return counts[hvd.rank()], sum(counts[: hvd.rank()]), sum(counts)


def check_gradients(gather):
    """Two gathers, whose backward passes come in opposite order on the two ranks."""
    leaves, outputs, upstream = {}, {}, {}
    for name in "ab":
        rows, _, total = rows_of(name)
        leaves[name] = torch.ones(rows, 2, requires_grad=True)
        outputs[name] = gather(leaves[name], name)
        # The same on both ranks, so the average is what it is; each row has a value of its own.
        upstream[name] = torch.arange(2.0 * total).reshape(total, 2) + (100 if name == "b" else 0)
    order = "ab" if hvd.rank() == 0 else "ba"
    with gathers_come_in_order(order):
        in_threads({name: lambda n=name: outputs[n].backward(upstream[n]) for name in order})
    for name in "ab":
        rows, first, _ = rows_of(name)
        expected = upstream[name][first : first + rows]
        assert torch.equal(leaves[name].grad, expected), (name, leaves[name].grad, expected)


@ranks(2)
def test_each_allgather_gets_the_gradients_of_its_own_rows():
    for step in range(3):
        check_gradients(lambda x, name: hvd.allgather(x, name=f"order.{name}.{step}"))
        check_gradients(lambda x, name: hvd.grouped_allgather([x, x], name=f"group.{name}.{step}")[0])


@ranks(2)
def test_in_compiled_code_too():
    if _compiler.graph is None:
        return  # this PyTorch leaves collectives out of its graphs
    torch.compiler.reset()
    compiled = {
        name: torch.compile(
            lambda x, name=name: hvd.allgather(x * 1, name=f"compiled.{name}"),
            backend="aot_eager",
            fullgraph=True,
            dynamic=False,
        )
        for name in "ab"
    }
    for name in "ab":  # backward passes are compiled when they come first
        compiled[name](torch.ones(rows_of(name)[0], 2, requires_grad=True)).sum().backward()
    check_gradients(lambda x, name: compiled[name](x))
