"""The example whose model one rank cannot hold, as users run it: it fails alone, trains on two and four ranks, and resumes."""

import os
import json
import pathlib
import sys

import pytest
from worlds import ends_of, launch

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_large.py"
SMALL = "--width 256 --layers 14 --heads 4 --length 32 --batch-size 4 --lr 1e-3".split()
LIMIT = ["--memory", "140"]  # of 170 MiB


def run(size, *options):
    # It bounds its memory when PyTorch is there, as a whole: not started quickly.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    whole = os.pathsep.join(path for path in paths if not path.endswith("quick_start"))
    return launch(size, [sys.executable, EXAMPLE, *SMALL, *options], env={"PYTHONPATH": whole})


def report_of(tmp_path, size, *options):
    report = tmp_path / f"{size}.json"
    code, output = run(size, *options, "--report", report)
    assert code == 0, output
    return json.loads(report.read_text()), output


def test_one_rank_is_told_what_it_would_need():
    code, output = run(1, *LIMIT)
    assert code != 0 and "Traceback" not in output, output
    assert "rank 0 of 1: --memory 140 is not enough here; start more ranks (ruedarun -np 2)" in output, output
    assert "a step needs 42 MiB for parameters, 42 MiB for gradients and 85 MiB for the optimizer's state" in output, output


def test_two_ranks_train_it_and_four_go_on_where_they_were(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be or not to be, that is the question. " * 1000)  # not the pages, which change
    folder = tmp_path / "checkpoint"
    first, output = report_of(tmp_path, 2, *LIMIT, "--text", text, "--steps", "3", "--checkpoint", folder)
    assert "step    3  loss" in output and "shared with the others" in output, output
    then, output = report_of(tmp_path, 4, *LIMIT, "--text", text, "--steps", "4", "--checkpoint", folder)
    assert "goes on behind step 3" in output and then["first"] == 3, output
    assert (folder / "latest").read_text() == "4" and not (folder / "3").exists()
    whole, _ = report_of(tmp_path, 2, "--text", text, "--steps", "4")  # without a limit, in one go
    assert first["losses"] + then["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert whole["losses"][-1] < 0.9 * whole["losses"][0], whole


def test_sizes_that_cannot_be_are_refused_before_training():
    wrong = {
        "--steps 0": "--steps 0: expected 1 or more",
        "--heads 7": "--width 256 cannot be shared by --heads 7",
        "--length 100000000": "--length 100000000: the text has ",
    }
    commands = [" ".join([*SMALL, options]) for options in wrong]
    for said, (code, output) in zip(wrong.values(), ends_of(EXAMPLE, *commands)):
        assert code not in (None, 0) and said in output and "Traceback" not in output, output
