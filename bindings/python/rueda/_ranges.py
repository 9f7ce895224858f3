"""Whether a profiler listens, and what it is told: a range around each collective and each wait.

Nobody listens until a framework's surface says who may: `rueda.torch` puts PyTorch's own question here. It
is asked at each call, and is no Python function; until then `bool` says no.
"""

is_on = bool
around = None  # (title, tensors): a context that shows what runs inside


def follow(question, ranges):
    """From now on ``question`` says whether somebody listens, and ``ranges(title, tensors)`` are shown."""
    global is_on, around
    is_on, around = question, ranges


def call(name, method, self, *args, **kwargs):
    """Calls a method of `Collectives` within the range ``rueda:name``; it has the shapes of what goes in."""
    given = args[0] if args else None  # the tensor, or several
    with around(f"rueda:{name}", given if isinstance(given, (tuple, list)) else (given,)):
        return method(self, *args, **kwargs)
