"""Marks in the timeline and the summary. One look at a flag when nothing is recorded.

The flag is looked up when the runtime starts and whenever a timeline starts or stops. A mark that comes
while another thread shuts down goes to nobody.
"""

from rueda import _ffi

_mark = _ffi.library.rueda_mark
_context = None  # the `Context` of the running runtime

on = False


def follow(context):
    """From now on marks go to this context, if it records; None: to nobody."""
    global on, _context
    recording = context is not None and _ffi.library.rueda_counter(context, b"recording") == 1
    _context = context
    on = recording


def begin(name):
    if on:
        _mark(_context, name.encode(), 0)


def end(name):
    if on:
        _mark(_context, name.encode(), 1)


def instant(name):
    if on:
        _mark(_context, name.encode(), 2)


_in_backward = False


def gradient(engine):
    """Marks "backward", from the first call in a backward pass to the end of the pass.

    For a hook on every gradient, while `on`. ``engine``: PyTorch's autograd engine, which says when
    the pass has ended.
    """
    global _in_backward
    if not _in_backward:
        _in_backward = True
        begin("backward")
        engine.queue_callback(_end_backward)


def _end_backward():
    global _in_backward
    if _in_backward:
        _in_backward = False
        end("backward")


def begin_step():
    """The wrapped optimizer steps from here on."""
    _end_backward()  # one that was broken off by an exception has no other end
    if _context is not None:  # also when nothing is recorded: a lost rank's last step is told
        _mark(_context, b"optimizer step", 0)


def begin_data():
    """The program waits for its next batch of data from here on, until `end_data`."""
    if _context is not None:  # also when nothing is recorded: it is part of the stats
        _mark(_context, b"wait for data", 0)


def end_data():
    if _context is not None:
        _mark(_context, b"wait for data", 1)


def end_step():
    end("optimizer step")
