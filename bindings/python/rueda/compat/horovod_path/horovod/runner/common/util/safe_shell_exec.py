"""Horovod's ``horovod.runner.common.util.safe_shell_exec``, by rueda: a command that leaves no process behind."""

import os
import signal
import subprocess
import sys
import threading
import time

GRACEFUL_TERMINATION_TIME_S = 5


def _end_group(pid):
    """SIGTERM, then SIGKILL, to all processes of a group."""
    try:
        os.killpg(pid, signal.SIGTERM)
        end = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
        while time.monotonic() < end:
            os.killpg(pid, 0)
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _copy(source, sink, prefix):
    for line in source:
        sink.write(prefix() + line)
        sink.flush()


def execute(command, env=None, stdout=None, stderr=None, index=None, events=None, prefix_output_with_timestamp=False):
    """Runs a command by the shell and returns its exit code (-N: ended by signal N).

    stdout, stderr: files that take its text; with ``index`` each line begins with [index]<stdout> or <stderr>.
    events: the command is ended as soon as one of them is set. What it leaves running is ended with it.
    """
    process = subprocess.Popen(
        command, shell=True, env=env, start_new_session=True, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def prefix(name):
        stamp = time.strftime("%a %b %d %H:%M:%S %Y") if prefix_output_with_timestamp and index is not None else ""
        return stamp + ("" if index is None else f"[{index}]<{name}>:")

    copies = [
        threading.Thread(target=_copy, args=(source, sink or console, lambda name=name: prefix(name)), daemon=True)
        for source, sink, console, name in (
            (process.stdout, stdout, sys.stdout, "stdout"),
            (process.stderr, stderr, sys.stderr, "stderr"),
        )
    ]
    for copy in copies:
        copy.start()
    try:
        while process.poll() is None:
            if any(event.is_set() for event in events or ()):
                break
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
    finally:
        _end_group(process.pid)
        process.wait()
        for copy in copies:
            copy.join(GRACEFUL_TERMINATION_TIME_S)
    return process.returncode
