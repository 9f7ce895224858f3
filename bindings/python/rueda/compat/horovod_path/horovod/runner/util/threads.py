"""Horovod's ``horovod.runner.util.threads``, by rueda: functions in threads of their own."""

import concurrent.futures
import threading
import traceback


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    """Starts target(*args) in a thread and returns the thread. silent: an exception is not printed."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args)}; for a single argument use (arg,)")

    def run():
        try:
            target(*args)
        except Exception:
            if not silent:
                traceback.print_exc()

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(event, func, args=(), stop=None, check_stop_interval_s=1.0, daemon=True, silent=False):
    """A thread that calls func(*args) once ``event`` is set, or ends when ``stop`` is set before."""
    if event is None:
        raise ValueError("event must not be None")
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args)}; for a single argument use (arg,)")

    def wait():
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(fn, args_list, block_until_all_done=True, max_concurrent_executions=1000):
    """{i: fn(*args_list[i])} for all i at the same time; None if it is not to wait for the results.

    An exception of fn is raised here; the other calls go on.
    """
    workers = max(1, min(max_concurrent_executions, len(args_list)))
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    calls = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=False)
    if not block_until_all_done:
        return None
    return {i: call.result() for i, call in enumerate(calls)}
