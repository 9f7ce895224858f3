"""wall_clock_breakdown: how long forward, backward and step have taken since the last line."""

import contextlib
import time


class Times:
    def __init__(self, on):
        self._on, self._sums = on, {}

    @contextlib.contextmanager
    def of(self, name):
        if not self._on:
            yield
            return
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._sums[name] = self._sums.get(name, 0.0) + time.perf_counter() - begin

    def text(self):
        """In milliseconds, of all since it was asked last; empty if that is nothing."""
        sums, self._sums = self._sums, {}
        return "".join(f", {name} {1e3 * seconds:.1f} ms" for name, seconds in sums.items())
