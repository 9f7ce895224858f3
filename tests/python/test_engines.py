"""What `rueda.ray` and `rueda.spark` share: whom a failure is blamed on, how ranks meet, and what is not installed."""

import importlib
import inspect
import os
import pickle
import socket
import subprocess
import sys

import horovod_facts as facts
import pytest
from rueda import _meeting, _outcomes
from rueda._outcomes import Outcome, culprit
from rueda.common import exceptions
from rueda.compat import horovod

WELL, MISSING, DEAD = Outcome("result"), Outcome("missing"), Outcome("dead", what="gone")
WRONG, ECHO = Outcome("error", what="ValueError"), Outcome("error", is_echo=True)


@pytest.mark.parametrize(
    ("outcomes", "order", "blamed"),
    [
        ([WELL, WELL], (), None),
        ([ECHO, WRONG], (0, 1), 1),
        ([WRONG, WRONG], (1, 0), 1),
        ([WRONG, DEAD], (0, 1), 1),
        ([MISSING, WRONG, ECHO], (2, 1), 1),
        ([Outcome("error", is_echo=True, lost=2), ECHO, MISSING], (0, 1), 2),
        ([WELL, ECHO, ECHO], (2, 1), 2),
    ],
)
def test_the_rank_that_is_to_blame_is_found(outcomes, order, blamed):
    assert culprit(outcomes, order) == blamed


def test_a_cause_that_peers_know_is_told():
    peer = Outcome("error", is_echo=True, lost=1, cause="killed by signal 9 (SIGKILL)")
    with pytest.raises(exceptions.RankFailed) as failed:
        _outcomes.results([peer, DEAD], nodes=["a", "b"], pids=[1, 2])
    assert str(failed.value) == "rank 1 of 2 (node b, pid 2) failed: killed by signal 9 (SIGKILL)\n\ngone"
    assert (failed.value.node, failed.value.pid) == ("b", 2)


def test_every_exception_survives_pickling():
    lost = exceptions.RankLostError("rank 3 was lost")
    lost.rank, lost.host, lost.cause = 3, "node7", "killed"
    for error in (
        lost,
        exceptions.RankFailed("m", 1, None, "node7", 12, "killed"),
        exceptions.HorovodInternalError("m"),
        exceptions.RemovedError("why"),
        exceptions.DeadlineExceeded("m"),
        exceptions.WrongCallError("m"),
        exceptions.HostsUpdatedInterrupt(skip_sync=True),
        exceptions.HorovodVersionMismatchError("torch", "1", "2"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_an_exception_that_cannot_be_pickled_is_told_in_words():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(one)

    def fail():
        raise Odd("first line\nsecond", 2)

    outcome = _outcomes.call(fail)
    assert outcome.error is None and outcome.what.endswith("Odd: first line") and "in fail" in outcome.trace
    with pytest.raises(exceptions.RankFailed, match="rank 0 of 1 failed: .*Odd: first line"):
        _outcomes.results([outcome])


def test_ranks_of_one_machine_meet_without_a_key_and_others_with_one():
    facts = [{"machine": m, "address": "10.0.0.1", "port": 7, "node": m} for m in "abab"]
    here = _meeting.places("j", facts[:1], b"secret")
    assert here == [{"rank": 0, "size": 1, "job": "j"}]
    assert _meeting.places("j", facts[:2], b"k")[1] == {
        "rank": 1, "size": 2, "job": "j", "rendezvous": "10.0.0.1:7", "key": b"k"
    }  # fmt: skip
    facts[0]["address"] = "fd00::1"
    assert _meeting.places("j", facts[:2], b"k")[0]["rendezvous"] == "[fd00::1]:7"
    assert _meeting.dense(facts) == [0, 2, 1, 3]


def test_variables_of_places_are_as_ruedarun_sets_them():
    names = "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"
    made = _meeting.variables([{"machine": machine} for machine in "bbaab"])
    assert [[each[f"HOROVOD_{name}"] for name in names] for each in made] == [
        list(text) for text in ("050302", "151302", "250212", "351212", "452301")
    ]


def test_a_kept_port_is_given_to_nobody_else_and_can_be_listened_at():
    port = _meeting.facts("n", "127.0.0.1")["port"]
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", port))
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(("127.0.0.1", port))
        ours.listen()


@pytest.mark.parametrize(
    ("module", "needs", "line"),
    [
        ("rueda.ray", "ray", "pip install 'ray>=2.40'"),
        ("horovod.ray", "ray", "pip install 'ray>=2.40'"),
        ("rueda.spark", "pyspark", "pip install 'pyspark>=3.5'"),
        ("horovod.spark", "pyspark", "pip install 'pyspark>=3.5'"),
    ],
)
def test_what_is_not_installed_is_named_with_how_to_install_it(module, needs, line):
    program = f"""
import sys
from rueda.compat import horovod
sys.path.insert(0, horovod.path())
import rueda
assert {needs!r} not in sys.modules
sys.modules[{needs!r}] = None
try:
    import {module}
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.endswith(f"is not installed: {line}\n") and done.stdout.startswith("rueda."), done.stdout


@pytest.mark.parametrize("name", facts.ENGINES)
def test_names_parameters_and_defaults_are_horovods(name, monkeypatch):
    pytest.importorskip("pyspark" if "spark" in name else "ray")
    monkeypatch.syspath_prepend(horovod.path())
    _, package, *attributes = name.split(".")
    found = importlib.import_module(f"horovod.{package}")
    for attribute in attributes:
        found = getattr(found, attribute, None) or importlib.import_module(f"{found.__name__}.{attribute}")
    has = [
        p.name + ("" if p.default is p.empty else f"={p.default!r}")
        for p in inspect.signature(found).parameters.values()
        if p.name != "_ray_trace_ctx"  # which ray.remote adds to a class
    ]
    # What Horovod demands may have a default here.
    wanted = facts.ENGINES[name].split(", ")
    assert [h.split("=")[0] if "=" not in w else h for h, w in zip(has, wanted)] == wanted and len(has) == len(wanted)


def test_a_release_that_is_too_old_is_refused():
    for module, needs, release in (("rueda.ray", "ray", "2.39.0"), ("rueda.spark", "pyspark", "3.4.1")):
        program = (
            f"import sys, types; old = types.ModuleType({needs!r}); old.__version__ = {release!r}; "
            f"sys.modules[{needs!r}] = old; import {module}"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert f"or newer, and {release} is installed: pip install '{needs}>=" in done.stderr
