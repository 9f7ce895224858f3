"""Every environment variable of Horovod has a place in one table, and the table is true."""

import os
import pathlib
import re
import subprocess
import sys

import horovod_facts as facts
import pytest
from rueda.compat import variables
from worlds import launch, ruedarun

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_FUSION_THRESHOLD": "1048576",
    "HOROVOD_CACHE_CAPACITY": "77",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "8",
    "HOROVOD_STALL_CHECK_DISABLE": "1",
    "HOROVOD_START_TIMEOUT": "9",
    "HOROVOD_ELASTIC_TIMEOUT": "11",
    "HOROVOD_TIMELINE": "timeline.json",
    "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    "HOROVOD_LOG_LEVEL": "ERROR",
    "HOROVOD_LOG_HIDE_TIME": "1",
}
INIT = "import rueda as hvd; hvd.init(); hvd.shutdown(); hvd.init(); print('size', hvd.size())"


def clean_environment(**additions):
    ours = {k: v for k, v in os.environ.items() if k not in variables.BY_NAME}
    return {**ours, **additions}


def init_with(**additions):
    return subprocess.run(
        [sys.executable, "-c", INIT],
        env=clean_environment(**additions),
        capture_output=True,
        text=True,
    )


def test_every_variable_of_horovod_has_one_row():
    names = [variable.name for variable in variables.VARIABLES]
    assert sorted(names) == sorted(set(facts.VARIABLES))
    for variable in variables.VARIABLES:
        assert variable.fate in (
            variables.HONOURED,
            variables.MAPPED,
            variables.GIVEN,
            variables.WARNED,
            variables.ELSEWHERE,
        )
        assert variable.what
        assert (variable.fate == variables.MAPPED) <= bool(variable.own)


def settings_with(name, value):
    """RUEDA_ variable -> (value, origin), as ruedarun would give them to the ranks."""
    done = subprocess.run(
        [ruedarun(), "--print-config"],
        env=clean_environment(**{name: value}),
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[0]: tuple(line.split()[1:3]) for line in done.stdout.splitlines()[1:]}


@pytest.mark.parametrize("name", [v.name for v in variables.VARIABLES if v.own])
def test_what_is_honoured_or_mapped_reaches_the_core(name):
    variable = variables.BY_NAME[name]
    value, origin = settings_with(name, SAMPLES[name])[variable.own]
    assert origin == name
    mapped = {"HOROVOD_STALL_CHECK_DISABLE": "0", "HOROVOD_LOG_LEVEL": "error"}
    assert value == mapped.get(name, SAMPLES[name])


def test_what_the_core_reads_of_horovod_is_in_the_table():
    source = (ROOT / "collectives" / "base" / "config_table.inc").read_text()
    read = set(re.findall(r'"(HOROVOD_\w+)"', source))
    assert read <= {v.name for v in variables.VARIABLES if v.own}


def test_what_has_no_effect_is_said_once_with_its_reason():
    asked = {v.name: "9" for v in variables.VARIABLES if v.fate == variables.WARNED}
    done = init_with(**asked)
    assert done.stdout == "size 1\n", done.stderr
    for name in asked:
        text = f"{name} has no effect: {variables.BY_NAME[name].what}"
        assert done.stderr.count(text) == 1, f"{text}\nnot once in\n{done.stderr}"


def test_what_asks_for_nothing_and_what_is_honoured_is_silent():
    quiet = {
        v.name: v.quiet[-1]
        for v in variables.VARIABLES
        if v.fate == variables.WARNED
    }
    build = {v.name: "1" for v in variables.VARIABLES if v.fate == variables.ELSEWHERE}
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        build[name] = "1"
        build[name.replace("SIZE", "RANK")] = "0"
    done = init_with(**quiet, **build, HOROVOD_FUSION_THRESHOLD="1048576")
    assert (done.stdout, done.stderr) == ("size 1\n", "")


def test_only_rank_0_warns():
    code, output = launch(2, [sys.executable, "-c", INIT], {"HOROVOD_CYCLE_TIME": "5"})
    assert code == 0, output
    assert output.count("HOROVOD_CYCLE_TIME has no effect") == 1, output


def test_a_value_that_makes_no_sense_is_an_error_where_horovod_takes_zero():
    done = init_with(HOROVOD_FUSION_THRESHOLD="64MB")
    assert done.returncode != 0
    assert "HOROVOD_FUSION_THRESHOLD='64MB': expected a whole number" in done.stderr


def test_a_rank_of_horovods_launcher_does_not_become_a_job_of_its_own():
    done = init_with(HOROVOD_RANK="1", HOROVOD_SIZE="2")
    assert done.returncode != 0 and "size" not in done.stdout
    assert "HOROVOD_SIZE=2" in done.stderr and "ruedarun -np 2" in done.stderr


def test_what_the_launcher_gives_is_there():
    given = [v.name for v in variables.VARIABLES if v.fate == variables.GIVEN]
    others = ("HOROVOD_HOSTNAME", "HOROVOD_ELASTIC")  # horovodrun's, and an elastic job's
    names = [name for name in given if name not in others]
    program = f"import os; print(*[os.environ.get(n, '-') for n in {names!r}])"
    code, output = launch(2, [sys.executable, "-c", program], options=["--no-prefix"])
    assert code == 0, output
    assert sorted(output.splitlines()) == ["0 2 0 2 0 1 1", "1 2 1 2 0 1 1"]


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "migrating.md").read_text()
    assert variables.table() in page, "docs/migrating.md is not current: run scripts/generate_tables.py"
