"""An optimizer whose step is broken off, or whose job is left and joined again: no gradient is freed early."""

import gc
import signal
import weakref

import rueda.torch as hvd
import torch
from expect import eventually, raises
from rueda._runtime import runtime
from rueda.torch import _distributed, _in_place
from worlds import ranks


class Training:
    """Of a few layers whose gradients take the fast path. Each rank's gradients are ``value``."""

    def __init__(self, layers=3):
        self.parameters = [torch.nn.Parameter(torch.ones(2000)) for _ in range(layers)]
        plain = torch.optim.SGD(self.parameters, lr=0.0)
        self.optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)

    def backward(self, value):
        self.optimizer.zero_grad()
        (value * torch.stack(self.parameters).sum()).backward()

    def step(self, value):
        self.backward(value)
        self.optimizer.step()
        return [p.grad.unique().tolist() for p in self.parameters]

    def warm_up(self):
        for _ in range(4):
            assert self.step(1.0) == [[float(hvd.size())]] * len(self.parameters)
        assert all(g.in_place is not None for g in self.optimizer._gradient_of.values())


def let_go():
    runtime._let_go()
    return not runtime._abandoned


@ranks(2)
def test_an_optimizer_goes_on_in_the_next_job():
    training = Training()
    training.warm_up()
    hvd.shutdown()
    hvd.init()
    training.warm_up()


def interrupt_the_next_start():
    """Ctrl-C comes when the library has begun, and before anybody else knows of it."""
    start = _in_place._start

    def interrupted(*arguments):
        _in_place._start = start
        assert start(*arguments) == 0
        signal.raise_signal(signal.SIGINT)

    _in_place._start = interrupted


@ranks(2)
def test_a_gradient_lives_on_that_was_interrupted_just_as_it_had_started():
    training = Training(layers=1)
    training.warm_up()
    if hvd.rank() == 0:
        interrupt_the_next_start()
        with raises(KeyboardInterrupt):
            training.backward(2.0)
        gradient = weakref.ref(training.parameters[0].grad)
        # Thrown away, and computed anew: the name is still in flight, for the peer has not come.
        with raises(ValueError, "still in flight"):
            training.backward(5.0)
        training.optimizer.zero_grad()
        assert gradient() is not None and runtime._abandoned
        hvd.barrier()
        eventually(let_go)
    else:
        hvd.barrier()
        assert training.step(3.0) == [[5.0]]
    hvd.barrier()


@ranks(2)
def test_a_gradient_lives_on_whose_optimizer_is_dropped_after_an_interrupt():
    training = Training(layers=1)
    training.warm_up()
    if hvd.rank() == 0:
        interrupt_the_next_start()
        with raises(KeyboardInterrupt):
            training.backward(2.0)
        gradient = weakref.ref(training.parameters[0].grad)
        optimizer = weakref.ref(training.optimizer)
        del training
        gc.collect()
        assert optimizer() is None
        assert gradient() is not None and len(runtime._abandoned) == 1
        hvd.barrier()
        eventually(let_go)
        assert gradient() is None
    else:
        hvd.barrier()
        assert training.step(3.0) == [[5.0]]
    hvd.barrier()


@ranks(2)
def test_gradients_live_on_when_giving_them_up_is_interrupted_too():
    training = Training()
    training.warm_up()
    if hvd.rank() == 0:
        give_up, wait = _distributed.give_up, _in_place._wait

        def interrupted(*_):
            _distributed.give_up, _in_place._wait = give_up, wait
            signal.raise_signal(signal.SIGINT)

        _distributed.give_up = interrupted
        _in_place._wait = lambda *_: signal.raise_signal(signal.SIGINT)
        training.backward(2.0)
        with raises(KeyboardInterrupt):
            training.optimizer.step()
        gradients = [weakref.ref(p.grad) for p in training.parameters]
        training.optimizer.zero_grad()
        assert all(gradient() is not None for gradient in gradients)
        assert len(runtime._abandoned) == len(gradients)
        hvd.barrier()
        eventually(let_go)
        assert all(gradient() is None for gradient in gradients)
    else:
        hvd.barrier()
        assert training.step(3.0) == [[5.0]] * 3
    hvd.barrier()
