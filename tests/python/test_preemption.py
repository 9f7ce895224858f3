"""A signal to one rank becomes ``should_stop()`` at one step of all."""

import os
import signal
import time

import numpy as np
import rueda as hvd
from worlds import run_ranks


def steps_until_asked(number, at):
    for step in range(1, 1000):
        hvd.allreduce(np.ones(8), op=hvd.Sum, name="work")
        if hvd.rank() == 1 and step == at:
            os.kill(os.getpid(), number)
        if hvd.should_stop():
            assert hvd.should_stop()  # and stays so
            return step
    return -1


def asked_by_default():
    return steps_until_asked(signal.SIGUSR1, 40)


def asked_while_it_waits():
    """Rank 1 is in should_stop(), as a rule, when it is asked: its vote of this step has gone out."""
    pids = hvd.allgather(np.array([os.getpid()]))
    for step in range(1, 100):
        if step == 3 and hvd.rank() == 0:
            time.sleep(0.1)
            os.kill(int(pids[1]), signal.SIGUSR1)
        if hvd.should_stop():
            return step
    return -1


def asked_with_a_handler():
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    step = steps_until_asked(signal.SIGTERM, 5)
    assert len(heard) == (1 if hvd.rank() == 1 else 0), heard
    return step


def workers_die_as_before():
    """A forked worker is ended by SIGTERM, as data loaders do."""
    assert not hvd.should_stop()
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
    assert not hvd.should_stop()
    return 0


def all_say(outcome, name, value):
    assert outcome.code == 0, outcome.output
    assert [report[name].get("result") for report in outcome.reports] == [value] * 3, outcome.reports


def test_all_ranks_stop_at_the_same_step():
    all_say(run_ranks(3, asked_by_default), "asked_by_default", 40)


def test_a_rank_that_is_asked_in_the_middle_of_a_step_stops_with_the_others():
    outcome = run_ranks(3, asked_while_it_waits)
    assert outcome.code == 0, outcome.output
    steps = {report["asked_while_it_waits"].get("result") for report in outcome.reports}
    assert len(steps) == 1 and steps <= {3, 4}, outcome.reports


def test_handlers_of_the_program_are_called_as_well():
    all_say(run_ranks(3, asked_with_a_handler), "asked_with_a_handler", 5)


def test_forked_workers_are_ended_by_the_signal():
    all_say(run_ranks(3, workers_die_as_before), "workers_die_as_before", 0)
