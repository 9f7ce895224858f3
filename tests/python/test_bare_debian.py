"""rueda on a Debian that has nothing: no network, no compiler, no rights, nothing of this machine."""

import pathlib
import shutil
import subprocess
import sys

import pytest

import trees

pytestmark = [pytest.mark.slow, pytest.mark.skipif(trees.why_not() is not None, reason=str(trees.why_not()))]
ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/home/user/an environment/bin/python"
RUEDARUN = "/home/user/an environment/bin/ruedarun"
HELLO = ["rank 0 of 2: the ranks add up to 1", "rank 1 of 2: the ranks add up to 1"]


def user_of(tree):
    tree.run("useradd", "--create-home", "--uid", trees.USER, "user", user=0)
    return {"HOME": "/home/user"}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A tree with Python alone, and rueda's wheel in an environment of a user there, installed without network."""
    (wheel,) = (ROOT / "build/wheel").glob("rueda-*.whl")
    folder = tmp_path_factory.mktemp("python")
    tree = trees.debian(folder / "tree", "python3", "python3-venv")
    env = user_of(tree)
    (tree.root / "wheels").mkdir()
    shutil.copy(wheel, tree.root / "wheels")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--python-version", "3.11", "--platform",
                    "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64", "--no-deps", "-d", tree.root / "wheels", "numpy>=1.21"],
                   check=True, timeout=300)  # fmt: skip
    shutil.copy(ROOT / "examples/hello_allreduce.py", tree.root / "home/user/hello.py")
    tree.run("python3", "-m", "venv", "/home/user/an environment", env=env)
    tree.run(PYTHON, "-m", "pip", "install", "-q", "--no-index", "--find-links", "/wheels", "rueda", env=env)
    yield tree
    shutil.rmtree(folder)


def hello(tree, **how):
    done = tree.run(RUEDARUN, "-np", "2", "--no-prefix", PYTHON, "/home/user/hello.py", **how)
    assert sorted(done.stdout.splitlines()) == HELLO and done.stderr == "", done
    return done


def test_there_is_nothing_else(python):
    done = python.run("sh", "-c", "command -v cc gcc c++ ssh ip; ls /sys/class/net; ls -A /home/user", check=False)
    assert "gcc" not in done.stdout and "ssh" not in done.stdout, done


def test_jobs_run(python):
    env = {"HOME": "/home/user"}
    assert python.run(PYTHON, "-c", "import rueda; print(rueda.__version__)", env=env).stdout
    python.run(RUEDARUN, "-np", "2", "true", env=env)
    hello(python, env=env)
    # Without any variable, too, not even HOME.
    hello(python)


@pytest.mark.parametrize("home", ["-o ro", "full"])
def test_a_home_that_cannot_be_written_is_no_matter(python, home):
    at = '"$root/home/user/home"'
    (python.root / "home/user/home").mkdir(exist_ok=True)
    mount = f"mount -t tmpfs -o ro tmpfs {at}" if home == "-o ro" else (
        f"mount -t tmpfs -o size=4k,mode=777 tmpfs {at}; head -c 4096 /dev/zero >{at}/all")
    assert python.run("sh", "-c", "echo more >/home/user/home/file", mounts=mount, check=False).returncode != 0
    hello(python, env={"HOME": "/home/user/home"}, mounts=mount, folder="/home/user/home")


@pytest.mark.parametrize("variable", [None, "/no/such/folder"])
def test_no_tmp_is_needed(python, variable):
    (python.root / "tmp").rename(python.root / "no-tmp")
    try:
        python.run("test", "!", "-e", "/tmp")
        hello(python, env={"TMPDIR": variable} if variable else {})
    finally:
        (python.root / "no-tmp").rename(python.root / "tmp")


def test_a_tree_that_cannot_be_written_is_no_matter(python):
    hello(python, mounts='mount --bind -o ro "$root" "$root"; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"')


def test_what_is_missing_is_one_sentence(python):
    done = python.run(RUEDARUN.replace("ruedarun", "rueda"), "demo", check=False)
    assert done.returncode != 0 and "torch" in done.stderr.lower() and "Traceback" not in done.stderr, done
    done = python.run(PYTHON, "-c", "import rueda.torch", check=False)
    assert done.stderr.strip().splitlines()[-1].startswith(("ModuleNotFoundError", "ImportError")), done


def test_it_is_removed_without_a_trace(python):
    listed = python.run("find", "/home/user/an environment", "-name", "*rueda*").stdout
    assert "ruedarun" in listed
    python.run(PYTHON, "-m", "pip", "uninstall", "-q", "-y", "rueda", env={"HOME": "/home/user"})
    assert python.run("find", "/home/user/an environment", "-name", "*rueda*").stdout == ""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """A tree with what a C++ programmer has."""
    tree = trees.debian(tmp_path_factory.mktemp("deb") / "tree", "g++", "cmake", "make", "pkg-config")
    user_of(tree)
    yield tree
    shutil.rmtree(tree.root)


def test_the_debian_package_is_all_that_a_cpp_program_needs_and_leaves_nothing(compiler, tmp_path):
    subprocess.run(["cpack", "--config", ROOT / "build/release/CPackConfig.cmake", "-B", tmp_path, "-G", "DEB"], check=True,
                   stdout=subprocess.DEVNULL, timeout=300)
    (deb,) = tmp_path.glob("rueda_*.deb")
    shutil.copy(deb, compiler.root / "rueda.deb")
    shutil.copytree(ROOT / "tests/consumer/project", compiler.root / "home/user/project")
    before = compiler.files()

    compiler.run("dpkg", "-i", "/rueda.deb", user=0)
    assert "/usr/bin/ruedarun" in compiler.files() - before
    env = {"HOME": "/home/user"}
    compiler.run("cmake", "-S", "/home/user/project", "-B", "/tmp/build", env=env)
    compiler.run("cmake", "--build", "/tmp/build", env=env)
    for program in ("/tmp/build/consumer_c", "/tmp/build/consumer_cpp"):
        compiler.run("ruedarun", "-np", "2", program, env=env)
    compiler.run("sh", "-c", "cc /home/user/project/consumer.c $(pkg-config --cflags --libs rueda) -o /tmp/by_pkg_config", env=env)
    compiler.run("ruedarun", "-np", "2", "/tmp/by_pkg_config", env=env)
    compiler.run("rueda", "--version", env=env)

    compiler.run("dpkg", "--purge", "rueda", user=0)
    assert compiler.files() == before
    assert compiler.run("/tmp/build/consumer_c", check=False).returncode == 127  # the linker's cache has forgotten it


def test_the_build_needs_nothing_but_what_is_listed_for_it(tmp_path):
    """Configured, which looks for all of it; tests and examples too, as the page of the first minute promises."""
    tree = trees.debian(tmp_path / "tree", *trees.packages("build"))
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        (tree.root / "source").mkdir()
        subprocess.run(["xargs", "-0", "cp", "--parents", "-t", tree.root / "source"], cwd=ROOT, input=listed, text=True, check=True)
        tree.run("cmake", "--preset", "release", user=0, folder="/source")
    finally:
        shutil.rmtree(tree.root)
