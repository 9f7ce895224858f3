"""`rueda.run`: a function on every rank of a job of its own; a rank that fails is named."""

import inspect
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings

import numpy
import pytest
import rueda
from rueda.compat.run import RankFailed
from worlds import TIMEOUT_SECONDS, ruedarun

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def launcher_and_scratch(monkeypatch, tmp_path):
    """The launcher under test; and a folder for temporary files, in which nothing may be left."""
    monkeypatch.setenv("RUEDA_RUEDARUN", ruedarun())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield scratch
    assert list(scratch.iterdir()) == []


# What ranks do. They import this module by name, as the caller did.


def meet(first, second=0):
    rueda.init()
    total = rueda.allreduce(numpy.full(2, rueda.rank() + 1.0), op=rueda.Sum)
    print("rank", rueda.rank(), "is here")
    folder = sys.argv[1]
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (folder, f"{folder}/function.pickle")]
    return rueda.rank(), rueda.size(), first + second, total.tolist(), modes


def environment(names):
    return [os.environ.get(name) for name in names]


class Unlucky(Exception):
    def __init__(self, number, reason):  # cannot be made again from its args
        super().__init__(f"{reason} {number}")


def raise_on(rank, error, *arguments):
    rueda.init()
    if rueda.rank() == rank:
        raise error(*arguments)
    rueda.allreduce(numpy.ones(1), name="others")


def die_on(rank):
    rueda.init()
    if rueda.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    rueda.allreduce(numpy.ones(1), name="others")


def leave(code):
    sys.exit(code)


def vanish():
    os._exit(0)


def return_a_lock():
    return threading.Lock()


def say_pid_and_wait(folder):
    rueda.init()
    pathlib.Path(folder, f"{rueda.rank()}.pid").write_text(str(os.getpid()))
    rueda.barrier()
    threading.Event().wait()


def test_the_parameters_are_horovods():
    assert str(inspect.signature(rueda.run)) == (
        "(func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, "
        "slots=None, reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, "
        "host_discovery_script=None, start_timeout=None, ssh_port=None, ssh_identity_file=None, "
        "disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None, "
        "mpi_args=None, network_interface=None, network_interfaces=None, executable=None, "
        "np=None, min_np=None, max_np=None)"
    )


def test_results_come_back_by_rank_and_output_is_shown(capsys):
    results = rueda.run(meet, (1,), {"second": 2}, num_proc=3)
    assert results == [(rank, 3, 3, [6.0, 6.0], [0o700, 0o600]) for rank in range(3)]
    out = capsys.readouterr().out
    assert sorted(out.splitlines()) == [f"[{r}]<stdout>: rank {r} is here" for r in range(3)]


def test_parameters_are_flags(capfd, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        [seen] = rueda.run(
            environment,
            (["HOROVOD_SIZE", "HOROVOD_START_TIMEOUT", "NCCL_SOCKET_IFNAME"],),
            np=1,
            hosts="localhost:1",
            start_timeout=77,
            network_interface="lo",
            ssh_port=22,
            disable_cache=True,
            use_gloo=True,
            verbose=2,
            output_filename=str(tmp_path / "out"),
            executable=sys.executable,
        )
    assert seen == ["1", "77", "lo"]
    assert (tmp_path / "out" / "rank.0" / "stdout").exists()
    assert "rank 0 is pid" in capfd.readouterr().err
    texts = [str(warning.message) for warning in caught]
    assert "np is deprecated, use num_proc" in texts
    assert "network_interface is deprecated, use network_interfaces" in texts
    assert not any("ssh_port" in text for text in texts)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"min_num_proc": 3}, "--min-np 3 is more than -np 2"),
        ({"num_proc": 3, "min_np": 1, "max_np": 2}, "-np 3 is more than --max-np 2"),
        ({"max_num_proc": 0, "slots": -1}, r"run\(max_num_proc=...\): .*1 or more.*\n.*slots.*1 or more"),
        ({"min_num_proc": 1, "reset_limit": -1}, "reset_limit.*0 or more, found -1"),
        ({"min_num_proc": 1, "cooldown_range": (9, 2)}, "cooldown_range.*1 to 3600 seconds"),
        ({"host_discovery_script": "/nonexistent"}, "'/nonexistent': there is no such file"),
        ({"host_discovery_script": "cat x", "hosts": "localhost:2"}, "-H exclude each other"),
        ({"use_mpi": True, "use_gloo": True}, "give one of them"),
        ({"hosts": "localhost:2", "hostfile": "x"}, "give one of them"),
        ({"hosts": "else where:2"}, "'else where' is no name of a host"),
        ({"hostfile": "/nonexistent"}, "cannot read the host file"),
        ({"num_proc": 0}, "expected 1 or more, found 0"),
        ({"num_proc": "2"}, "expected a whole number, found '2'"),
        ({"np": 3}, "np and num_proc are the same parameter"),
        ({"start_timeout": -1}, "expected 1 or more"),
        ({"network_interfaces": ["no-such-nic"]}, "no interface no-such-nic"),
        ({"executable": "/no/such/python"}, "'/no/such/python' not found"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_is_an_error_that_says_so(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        rueda.run(meet, (1,), **{"num_proc": 2, **arguments})


def test_an_exception_is_raised_in_the_caller_with_rank_and_traceback():
    with pytest.raises(RankFailed) as raised:
        rueda.run(raise_on, (1, LookupError, "no such batch"), num_proc=2)
    error, text = raised.value, str(raised.value)
    assert isinstance(error, RuntimeError) and error.rank == 1 and error.exit_code == 1
    assert text.startswith("rank 1 of 2: LookupError: no such batch\n\nTraceback")
    assert "in raise_on" in text and "run_task" not in text
    assert "rank 0 reported: " in text
    assert type(error.__cause__) is LookupError and error.__cause__.args == ("no such batch",)


def test_an_exception_that_cannot_travel_is_told_as_text():
    with pytest.raises(RankFailed, match=r"rank 0 of 1: .*Unlucky: number 13") as raised:
        rueda.run(raise_on, (0, Unlucky, 13, "number"))
    assert raised.value.__cause__ is None


def test_a_killed_rank_is_named():
    with pytest.raises(RankFailed, match="rank 1 of 2: killed by signal 9 .SIGKILL.") as raised:
        rueda.run(die_on, (1,), num_proc=2)
    assert raised.value.rank == 1 and raised.value.exit_code == 137
    assert "rank 0 reported: rank 1 " in str(raised.value)


@pytest.mark.parametrize(
    "function, arguments, code, reason",
    [
        (leave, (3,), 3, "rank 0 of 1: SystemExit: 3"),
        (leave, (0,), 0, "rank 0 of 1: SystemExit: 0"),
        (vanish, (), 0, "rank 0 of 1: ended without returning"),
        (return_a_lock, (), 1, "what the function returned .lock. cannot be pickled"),
    ],
)
def test_a_rank_without_a_result_is_an_error(function, arguments, code, reason):
    with pytest.raises(RankFailed, match=reason) as raised:
        rueda.run(function, arguments)
    assert raised.value.exit_code == code


def test_what_pickle_cannot_send_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ValueError, match="cannot be sent to the ranks.*pip install cloudpickle"):
        rueda.run(lambda: 1)
    main = types.FunctionType((lambda: 1).__code__, {"__name__": "__main__"}, "main")
    with pytest.raises(ValueError, match="only with cloudpickle: pip install cloudpickle, or put"):
        rueda.run(main)
    with pytest.raises(ValueError, match="expected a function to run, found 3"):
        rueda.run(3)


def test_cloudpickle_is_used_where_it_is_installed(tmp_path, monkeypatch):
    """A neutral contribution, because the tests do without it: it sends a name for every lambda."""
    (tmp_path / "cloudpickle.py").write_text(
        "import pickle, operator\n"
        "def dumps(obj, protocol):\n"
        "    if type(obj[0]).__name__ == 'function': obj = (operator.add, *obj[1:])\n"
        "    return pickle.dumps(obj, protocol)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)
    try:
        assert rueda.run(lambda a, b: a + b, (3, 4), num_proc=1) == [7]
    finally:
        sys.modules.pop("cloudpickle", None)


def wait_until(condition):
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# Whatever the tests were started by: a shell starts background jobs with SIGINT ignored.
CALLER = """
import signal, sys; sys.path.insert(0, sys.argv[1])
import rueda, test_run_function
signal.signal(signal.SIGINT, signal.default_int_handler)
rueda.run(test_run_function.say_pid_and_wait, (sys.argv[2],), num_proc=2)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_the_ranks_end_with_the_caller(how, tmp_path):
    here = str(pathlib.Path(__file__).parent)
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, here, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    ranks = []
    try:
        files = [tmp_path / f"{rank}.pid" for rank in range(2)]
        wait_until(
            lambda: caller.poll() is not None or all(f.exists() and f.read_text() for f in files)
        )
        assert caller.poll() is None, caller.stdout.read().decode()
        ranks = [int(file.read_text()) for file in files]
        caller.send_signal(how)
        output = caller.communicate(timeout=TIMEOUT_SECONDS)[0].decode()  # ends with the last writer
        assert caller.returncode != 0
        assert ("KeyboardInterrupt" in output) == (how == signal.SIGINT), output
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks))
    finally:
        caller.kill()
        for pid in ranks:  # only where the test has failed is one left
            if pathlib.Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def test_the_pages_example_gives_what_it_says(tmp_path):
    page = (DOCS / "horovodrun.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.S)
    expected = re.search(r"^# (\[.*\])$", program, re.M).group(1)
    definition, call = program.split("print(")
    (tmp_path / "page_functions.py").write_text(definition)
    script = f"import rueda\nfrom page_functions import train\nprint({call}"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.stdout.strip() == expected, done.stderr
