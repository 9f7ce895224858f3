"""Shared fixtures: worlds of ranks, kept for all tests of a session."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import worlds  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: only with scripts/test --all")
    # PyTorch's threads spin while they wait for each other, each on a core that another test's rank or a compiler needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("RUEDA_CHECK_PROGRAMS", "1")  # of every plan of attention, in jobs too
    if config.getoption("markexpr") == "not slow":
        quick = str(pathlib.Path(__file__).resolve().parent / "quick_start")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (quick, os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session")
def shared_worlds(request):
    return worlds.SharedWorlds(request.session.items)


@pytest.fixture
def run_ranks():
    return worlds.run_ranks


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Of tests that share a world the first one waits for all: durations are each test's own."""
    outcome = yield
    shared = getattr(item, "funcargs", {}).get("shared_worlds")
    body = getattr(getattr(item, "function", None), "body", None)
    if call.when == "call" and shared and body:
        report = outcome.get_result()
        report.duration = shared.seconds(body, item.callspec.params["size"], call.duration)
