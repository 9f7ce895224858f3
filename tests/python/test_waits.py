"""A deadline and Ctrl-C end a wait at once, also in the middle of a large collective.

What a waiting thread does that runs the collective itself: tests/runtime/waits_test.cc.
"""

import os
import signal
import threading

import numpy as np
import rueda as hvd
from expect import eventually, raises
from rueda import _forms, _runtime
from rueda._runtime import runtime
from worlds import ranks

COUNT = 1 << 27  # float32: 512 MiB, some tenths of a second at least
HELD = 3  # seconds; a stopped process is taken for dead after 5


def settled():
    """Whether nothing holds memory any more that an interrupted call has left."""
    runtime._let_go()
    return not runtime._abandoned


class HeldOpen:
    """As soon as a sum in place has begun to come in the other rank stands still, so that the sum has no end.

    Until `release` is called, or seconds later for a wait that does not end before. SIGINT comes for this
    process once the other one stands, if ``interrupts``: while the waiting thread, whose sleep is not broken
    off, as another thread takes the signal, waits or runs the collective.
    """

    def __init__(self, array, interrupts=False):
        self.in_time = False
        pids = hvd.allgather(np.array([os.getpid()]))
        self._other = int(pids[1 - hvd.rank()])
        self._array, self._before = array, array[[0, len(array) // 2]]
        self._released = threading.Event()
        self._interrupts = interrupts
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        if interrupts:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

    def _hold(self):
        eventually(lambda: (self._array[[0, len(self._array) // 2]] != self._before).any())
        os.kill(self._other, signal.SIGSTOP)
        try:
            if self._interrupts:
                os.kill(os.getpid(), signal.SIGINT)
            self.in_time = self._released.wait(HELD)
        finally:
            os.kill(self._other, signal.SIGCONT)

    def release(self):
        self._released.set()
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


@ranks(2)
def test_a_deadline_is_kept_in_the_middle_of_a_large_collective():
    x = np.ones(COUNT, np.float32)
    held = HeldOpen(x) if hvd.rank() == 0 else hvd.allgather(np.array([os.getpid()]))
    handle = hvd.allreduce_async_(x, op=hvd.Sum)
    if hvd.rank() == 0:
        with raises(hvd.DeadlineExceeded, "allreduce 'noname.", "has not ended after 0.05"):
            hvd.synchronize(handle, timeout=0.05)
        under_way = not hvd.poll(handle)
        held.release()
        assert held.in_time and under_way, "raised only when it had ended"
    assert hvd.synchronize(handle) is x  # it goes on
    assert x[0] == x[COUNT // 2] == x[-1] == 2


@ranks(2)
def test_an_interrupt_is_raised_in_the_middle_of_a_large_collective():
    for name, before in ((None, 0), (None, 2), ("comes again", 2)):  # also the short ways of what comes again
        x = np.ones(COUNT, np.float32)
        for _ in range(before):
            hvd.allreduce_(x, name=name, op=hvd.Sum)
        if hvd.rank() == 0:
            held = HeldOpen(x, interrupts=True)
            with raises(KeyboardInterrupt):
                hvd.allreduce_(x, name=name, op=hvd.Sum)
            under_way = not settled()
            held.release()
            assert held.in_time and under_way, f"{name}, {before} before: raised only when it had ended"
            eventually(settled)
        else:
            hvd.allgather(np.array([os.getpid()]))
            hvd.allreduce_(x, name=name, op=hvd.Sum)
        assert x[0] == x[COUNT // 2] == x[-1] == 2 ** (before + 1)
        hvd.barrier()


class InterruptedStart:
    """Stands for the library's functions that start something: SIGINT when they have, before Python goes on."""

    def __init__(self, start):
        self._start = start

    def __call__(self, *arguments):
        code = self._start(*arguments)
        assert code == 0, code
        signal.raise_signal(signal.SIGINT)  # its handler raises here, as after any call
        return code


class InterruptedLibrary:
    def __init__(self, library):
        self._library = library
        self.rueda_start = InterruptedStart(library.rueda_start)

    def __getattr__(self, name):
        return getattr(self._library, name)


@ranks(2)
def test_what_is_interrupted_just_as_it_has_started_ends_and_is_let_go():
    def interrupted(module, attribute, stand_in, call):
        x = np.full(1000, hvd.rank() + 1, np.float32)
        if hvd.rank() == 0:
            original = getattr(module, attribute)
            setattr(module, attribute, stand_in(original))
            try:
                with raises(KeyboardInterrupt):
                    call(x)
            finally:
                setattr(module, attribute, original)
            eventually(settled)
            assert not runtime._entries
        else:
            handle = call(x)
            if isinstance(handle, int):
                hvd.synchronize(handle)
        assert (x == 3).all(), x

    def blocking(name):
        return lambda x: hvd.allreduce_(x, name=name, op=hvd.Sum)

    def started(x):
        return hvd.allreduce_async_(x, name="again", op=hvd.Sum)

    interrupted(_runtime, "_lib", InterruptedLibrary, blocking(None))
    interrupted(_runtime, "_lib", InterruptedLibrary, blocking("once"))
    interrupted(_runtime, "_lib", InterruptedLibrary, lambda x: hvd.allreduce_async_(x, op=hvd.Sum))
    for call in blocking(None), blocking("again"):
        for _ in range(3):
            call(np.ones(1000, np.float32))
    interrupted(_forms, "_start_and_wait", InterruptedStart, blocking(None))
    interrupted(_runtime, "_start", InterruptedStart, started)
    for call in blocking("again"), lambda x: hvd.synchronize(started(x)), blocking("again"):
        call(np.ones(1000, np.float32))
    interrupted(_runtime, "_run", InterruptedStart, blocking("again"))
    hvd.barrier()
