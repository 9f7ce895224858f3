"""The examples, as a user runs them: the first real job reaches what it promises."""

import pathlib
import re
import sys

import pytest
from worlds import launch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TRAIN = EXAMPLES / "train_digits.py"


def test_two_ranks_reach_95_percent_with_equal_parameters(tmp_path):
    checkpoint = tmp_path / "digits.pt"
    code, output = launch(2, [sys.executable, TRAIN, "--checkpoint", checkpoint])
    assert code == 0, output
    accuracy = float(re.search(r"test accuracy (0\.\d+|1\.0+)", output).group(1))
    assert accuracy >= 0.95, output
    hashes = dict(re.findall(r"parameter hash rank (\d+) ([0-9a-f]{16})", output))
    assert list(hashes) == ["0", "1"] and len(set(hashes.values())) == 1, output
    assert len(re.findall(r"epoch +\d+/16 ", output)) == 16, "the bar is rank 0's alone:\n" + output

    # Goes on from the checkpoint, on another number of ranks: nothing is left to do.
    code, again = launch(1, [sys.executable, TRAIN, "--checkpoint", checkpoint])
    assert code == 0, again
    assert f"parameter hash rank 0 {hashes['0']}" in again


def test_the_loss_curve_of_two_ranks_is_that_of_one_process(tmp_path):
    arguments = ["--same-batches", "--batch-size", "30", "--epochs", "2", "--seed", "5"]
    curves = []
    for size in (1, 2):
        log = tmp_path / f"{size}.txt"
        timeline = ["--timeline", tmp_path / "timeline.json"] if size == 2 else []
        command = [sys.executable, TRAIN, *arguments, "--loss-log", log, *timeline]
        code, output = launch(size, command)
        assert code == 0, output
        curves.append([float(line) for line in log.read_text().split()])
    assert len(curves[0]) == len(curves[1]) == 96
    for step, (alone, together) in enumerate(zip(curves[0][:50], curves[1][:50])):
        assert together == pytest.approx(alone, rel=1e-5), f"step {step}"
    assert curves[0][49] < curves[0][0]


def test_the_smallest_example_says_hello():
    code, output = launch(3, [sys.executable, EXAMPLES / "hello_allreduce.py"])
    assert code == 0, output
    for rank in range(3):
        assert f"rank {rank} of 3: the ranks add up to 3" in output


def test_a_script_written_for_horovod_runs_with_only_the_import_changed():
    script = pathlib.Path(__file__).with_name("horovod_style_script.py")
    code, output = launch(2, [sys.executable, script])
    assert code == 0, output
    assert output.count("finished with equal parameters") == 2, output
