"""``import horovod`` means rueda when it is asked for, and only then; scripts run unchanged."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from rueda.compat import horovod
from worlds import launch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "horovod"
WHICH = "import horovod; print('horovod is', horovod.__file__)"


def without_the_folder():
    """PYTHONPATH as it is, without the folder that a caller may have put there."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(e for e in entries if e and os.path.abspath(e) != horovod.path())


def test_the_folder_is_printed_for_other_launchers():
    asked = [sys.executable, "-m", "rueda.compat.horovod", "--path"]
    folder = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert folder == horovod.path() + "\n" and os.path.isabs(horovod.path())
    assert os.listdir(horovod.path()) == ["horovod"], "nothing else comes onto the path"
    env = {**os.environ, "PYTHONPATH": folder.strip() + os.pathsep + without_the_folder()}
    done = subprocess.run([sys.executable, "-c", WHICH], env=env, capture_output=True, text=True)
    assert folder.strip() in done.stdout, done.stderr
    refused = subprocess.run(asked[:-1], capture_output=True, text=True)
    assert refused.returncode == 2 and "--path" in refused.stderr


def test_an_installed_horovod_is_shadowed_only_when_asked(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("")
    env = {"PYTHONPATH": str(tmp_path) + os.pathsep + without_the_folder()}
    command = [sys.executable, "-c", WHICH]
    code, output = launch(2, command, env)
    assert code == 0 and output.count(f"horovod is {tmp_path}") == 2, output
    code, output = launch(2, command, env, options=["--horovod"])
    assert code == 0 and output.count(f"horovod is {horovod.path()}") == 2, output
    imported = subprocess.run(
        [sys.executable, "-c", "import rueda.torch; import horovod; print(horovod.__file__)"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert str(tmp_path) in imported.stdout, imported.stderr


def test_a_script_of_horovod_that_was_started_without_the_flag_is_told_of_it(tmp_path):
    (tmp_path / "horovod.py").write_text("raise ModuleNotFoundError(\"No module named 'horovod'\")\n")
    env = {"PYTHONPATH": str(tmp_path) + os.pathsep + without_the_folder()}  # as if none were installed
    hint = "ruedarun: `import horovod` means rueda with --horovod: ruedarun --horovod ..."
    code, output = launch(2, [sys.executable, "-c", WHICH], env)
    assert code == 1 and output.count(hint) == 1, output
    code, output = launch(2, [sys.executable, "-c", WHICH], env, options=["--horovod"])
    assert code == 0 and hint not in output, output


def run_example(name, size, *arguments):
    code, output = launch(
        size, [sys.executable, EXAMPLES / name, *arguments], options=["--horovod", "--no-prefix"]
    )
    assert code == 0, output
    return output


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_image_classification_learns_the_digits(size, tmp_path):
    output = run_example("image_classification.py", size, "--checkpoint", tmp_path / "digits.pt")
    accuracies = [float(text) for text in re.findall(r"accuracy (\d\.\d+)", output)]
    assert len(accuracies) == 3, "rank 0 alone prints\n" + output
    assert accuracies[-1] > 0.8, output
    assert (tmp_path / "digits.pt").exists()


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_language_model_learns_the_followers(size):
    output = run_example("language_model.py", size)
    perplexities = [float(text) for text in re.findall(r"perplexity (\d+\.\d)", output)]
    assert len(perplexities) == 6, output
    assert perplexities[-1] < 20 < perplexities[0], output


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_gan_finds_the_ring(size):
    output = run_example("gan.py", size)
    assert output.count("losses") == 4, output
    assert float(re.search(r"mean distance from the ring (\d+\.\d+)", output).group(1)) < 0.5


def test_the_examples_know_nothing_of_rueda():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 3
    for script in scripts:
        code = re.sub(r'^""".*?"""', "", script.read_text(), flags=re.DOTALL)
        assert "import horovod.torch as hvd" in code and "rueda" not in code, script
