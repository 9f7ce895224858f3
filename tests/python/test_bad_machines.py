"""Machines and installations on which rueda cannot work: one sentence each that says what to do. What must
be no matter (homes and folders that cannot be written) is tried in test_wheel.py and test_bare_debian.py."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import rueda
from worlds import ruedarun

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(rueda.__file__).resolve().parent
INIT = [sys.executable, "-c", "import rueda; rueda.init()"]


def run(*command, **env):
    return subprocess.run([str(word) for word in command], env={**os.environ, **env}, capture_output=True, text=True, timeout=120)


def last_line(done):
    assert done.returncode != 0, done
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def no_memfd(tmp_path_factory):
    """To be preloaded: memfd_create as a seccomp profile that does not know it answers."""
    folder = tmp_path_factory.mktemp("memfd")
    (folder / "no.c").write_text("#include <errno.h>\nint memfd_create(const char* n, unsigned f) { errno = ENOSYS; return -1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "no.so", folder / "no.c"], check=True)
    return str(folder / "no.so")


def test_without_memfd_launcher_and_ranks_say_what_must_be_allowed(no_memfd):
    advice = "memfd_create must be allowed: loosen the container's seccomp profile (kernel 3.17 or newer)"
    done = run(ruedarun(), "-np", "2", "true", LD_PRELOAD=no_memfd)
    assert done.returncode == 70 and advice in done.stderr and len(done.stderr.splitlines()) == 1, done
    done = run(ruedarun(), "-np", "2", "-x", f"LD_PRELOAD={no_memfd}", *INIT)
    assert advice in done.stderr, done


def test_a_folder_for_temporary_files_that_is_not_there_is_no_matter():
    done = run(ruedarun(), "-np", "2", *INIT, TMPDIR="/no/such/folder", HOME="/no/such/home")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def pytorch(folder, version):
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(f"__version__ = {version!r}\n" if version else "raise ModuleNotFoundError(name='torch')")
    return str(folder)


def import_torch(path):
    return run(sys.executable, "-c", "import rueda.torch", PYTHONPATH=os.pathsep.join([path, str(PACKAGE.parent)]))


def test_a_pytorch_that_is_too_old_or_missing_is_named(tmp_path):
    (tmp_path / "old").mkdir()
    said = last_line(import_torch(pytorch(tmp_path / "old", "1.12.1+cu116")))
    assert said == "ImportError: rueda.torch needs PyTorch 1.13 or newer, this one is 1.12.1+cu116: pip install --upgrade torch"
    (tmp_path / "none").mkdir()
    said = last_line(import_torch(pytorch(tmp_path / "none", None)))
    assert said == "ModuleNotFoundError: rueda.torch needs PyTorch, which this Python has not: pip install torch"


def test_a_second_copy_works_beside_the_first_and_a_library_of_its_own_is_named(tmp_path):
    """Of one version: whichever is first on the path, with the other's launcher. A copy whose library is of another one: refused."""
    second = tmp_path / "second"
    shutil.copytree(PACKAGE, second / "rueda", ignore=shutil.ignore_patterns("__pycache__"))
    program = "import rueda; rueda.init(); print(rueda.__file__)"
    done = run(ruedarun(), "-np", "2", "--no-prefix", sys.executable, "-c", program, PYTHONPATH=str(second))
    assert done.stdout.split() == [str(second / "rueda/__init__.py")] * 2, done
    abi = second / "rueda/_abi.py"
    abi.write_text(abi.read_text().replace(f'VERSION = "{rueda.__version__}"', 'VERSION = "0.0.9"'))
    said = last_line(run(sys.executable, "-c", "import rueda", PYTHONPATH=str(second)))
    assert said.endswith("this package is 0.0.9: reinstall rueda so that both come from the same build") and str(second) in said


def test_a_wheel_for_another_platform_is_refused_by_pip(tmp_path):
    wheels = list((ROOT / "build/wheel").glob("rueda-*.whl"))
    if not wheels:
        pytest.skip("scripts/setup --python makes no wheel")
    for platform in ("musllinux_1_2_x86_64", "macosx_14_0_arm64", "win_amd64"):
        done = run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--only-binary", ":all:", "--platform", platform,
                   "--target", tmp_path / platform, wheels[0])
        assert "is not a supported wheel on this platform" in done.stderr and done.returncode != 0, done


def configured(tmp_path, *options):
    done = run("cmake", "-S", ROOT, "-B", tmp_path / "build", "--fresh", "-G", "Ninja", *options)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def test_a_build_for_another_system_or_c_library_is_refused_at_once(tmp_path):
    assert "rueda runs on Linux, this is Darwin: build and run it in a Linux container" in configured(
        tmp_path, "-DCMAKE_SYSTEM_NAME=Darwin")
    # As musl's compiler: its features.h says nothing of glibc.
    (tmp_path / "musl").mkdir()
    (tmp_path / "musl/features.h").write_text("")
    assert "rueda needs glibc" in configured(tmp_path, f"-DCMAKE_C_FLAGS=-I{tmp_path}/musl")
