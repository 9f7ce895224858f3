"""Programs that end: each in a process group of its own, stopped as a whole when its time is over, its output in a file."""

import os
import signal
import subprocess
import tempfile
import time

TIMED_OUT = 124
_GRACE = 10  # seconds to end after SIGTERM
_LOST = 5    # and after SIGKILL: a process may hang in the driver


class Runner:
    """Runs commands of one gpu_check.

    log: a file that all output is added to. deadline: time.monotonic() at which everything has to be over.
    """

    def __init__(self, root, log, deadline):
        self._root = root
        self._log = log
        self._deadline = deadline
        self._group = None

    def left(self):
        """Seconds until the deadline."""
        return self._deadline - time.monotonic()

    def __call__(self, command, seconds, **variables):
        """(status, output). 124: no end in time; 127: no such program. variables: of the environment; None takes one away."""
        seconds = max(1.0, min(seconds, self.left()))
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        environment = {name: value for name, value in environment.items() if value is not None}
        words = [str(word) for word in command]
        begin = time.monotonic()
        with tempfile.TemporaryFile() as file:
            try:
                process = subprocess.Popen(words, env=environment, cwd=self._root, stdin=subprocess.DEVNULL,
                                           stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            except OSError as error:
                return 127, f"{words[0]}: {error.strerror}"
            self._group = process
            try:
                status, end = process.wait(seconds), ""
            except subprocess.TimeoutExpired:
                status, end = TIMED_OUT, f"\nno end after {seconds:.0f} s"
                self.stop()
            finally:
                self._group = None
            file.seek(0)
            output = file.read().decode(errors="replace") + end
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(f"\n=== {' '.join(words)}\n=== status {status} after {time.monotonic() - begin:.1f} s\n{output}\n")
        return status, output

    def stop(self):
        """Ends what runs. ruedarun ends its ranks when it is asked to."""
        process = self._group
        if process is None:
            return
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _LOST)):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
            if number == signal.SIGTERM:
                time.sleep(0.2)  # children that the leader has not waited for
