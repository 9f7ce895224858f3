"""Horovod's ``horovod.runner.common.util.timeout``, by rueda."""

import time


class TimeoutException(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.message = message


class Timeout:
    """A deadline ``timeout`` seconds from now. ``message`` may name the ``{activity}`` that it ends."""

    def __init__(self, timeout, message):
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._message = message

    def remaining(self):
        return max(0, self._end - time.monotonic())

    def timed_out(self):
        return time.monotonic() > self._end

    def check_time_out_for(self, activity):
        if self.timed_out():
            message = self._message.format(activity=activity).rstrip().rstrip(".")
            raise TimeoutException(f"{message}. Timeout after {self._timeout} seconds.")
