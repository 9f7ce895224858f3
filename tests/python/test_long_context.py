"""The example that trains on long sequences, as users run it: one loss on any number of ranks."""

import json
import pathlib
import sys

from worlds import ends_of, launch

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_long_context.py"
SMALL = "--length 127 --embed-dim 32 --heads 2 --layers 1 --steps 50 --lr 3e-3".split()


def losses(tmp_path, size, *options):
    report = tmp_path / f"{size}.json"
    command = [sys.executable, EXAMPLE, *SMALL, *options, "--report", report]
    code, output = launch(size, command)
    assert code == 0, output
    found = json.loads(report.read_text())
    assert "characters/s" in output and f"rank {size - 1}: " in output, output
    return found["losses"]


def test_the_loss_is_that_of_one_rank(tmp_path):
    alone = losses(tmp_path, 1)
    assert len(alone) == 50 and alone[-1] < 0.8 * alone[0], alone
    for size, options in ((2, []), (4, ["--ring-size", "2"])):
        together = losses(tmp_path, size, *options)
        off = max(abs(a / b - 1) for a, b in zip(together, alone))
        assert off <= 1e-4, (size, off)


def test_sizes_that_cannot_be_are_refused_before_training():
    wrong = {
        "--steps 0": "--steps 0: expected 1 or more",
        "--heads 3": "cannot be shared by --heads 3 in pairs",
        "--length 100000000": "--length 100000000: the text has ",
    }
    for said, (code, output) in zip(wrong.values(), ends_of(EXAMPLE, *wrong)):
        assert code not in (None, 0) and said in output and "Traceback" not in output, output
