"""What others install: the wheel that scripts/setup made of this build, and the source package."""

import email
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import rueda

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheel"
MOST_BYTES = 12_000_000  # without CUDA's kernels
OF_THE_SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
NEWEST_GLIBC = (2, 34)  # of manylinux_2_34


@pytest.fixture(scope="module")
def wheel():
    found = list(WHEELS.glob("rueda-*.whl"))
    if not found:
        pytest.skip("scripts/setup --python makes no wheel")
    (path,) = found
    return path


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        for info in archive.infolist():
            os.chmod(folder / info.filename, info.external_attr >> 16 or 0o644)
    return folder


def binaries(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def metadata(folder):
    (path,) = folder.glob("*.dist-info/METADATA")
    return email.message_from_string(path.read_text())


def test_it_holds_all_that_a_user_needs(unpacked):
    package = unpacked / "rueda"
    for name in (
        "bin/ruedarun bin/rueda lib/librueda.so.2 lib/cmake/rueda/ruedaConfig.cmake lib/pkgconfig/rueda.pc py.typed "
        "share/man/man1/ruedarun.1 share/man/man1/rueda.1 share/bash-completion/completions/ruedarun share/zsh/site-functions/_rueda "
        "share/fish/vendor_completions.d/ruedarun.fish share/rueda/examples/train_digits.py templates/c++.cc "
        "include/rueda/rueda.h include/rueda/rueda.hpp __main__.py torch/__init__.py attention/__init__.py "
        "compat/horovod_path/horovod/torch/__init__.py ../rueda_launcher.py"
    ).split():
        assert (package / name).is_file(), name
    assert os.access(package / "bin/ruedarun", os.X_OK) and os.access(package / "bin/rueda", os.X_OK)
    assert not (package / "share/doc").exists()  # licences are in the place that wheels have for them:
    (licences,) = unpacked.glob("*.dist-info/licenses")
    for name in ("LICENSE", "THIRD_PARTY"):
        assert (licences / name).read_text() == (ROOT / name).read_text()


def test_it_holds_each_module_of_the_package_and_nothing_besides(unpacked):
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "bindings/python"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if tracked.returncode != 0:
        pytest.skip("no git here")
    source = ROOT / "bindings/python"
    wanted = {path for path in tracked.stdout.split() if path.endswith((".py", ".cc", "py.typed"))}
    wanted = {os.path.relpath(ROOT / path, source) for path in wanted if (ROOT / path).exists()}
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert wanted - found == set()
    own = re.compile(r"rueda/(bin|lib|include|share)/|rueda-[\d.]+\.dist-info/")
    assert {name for name in found - wanted if not own.match(name)} == set()


def test_its_binaries_need_only_what_every_linux_has(unpacked):
    found = binaries(unpacked)
    assert len(found) >= 3
    for path in found:
        said = subprocess.run(["readelf", "-dVSW", path], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))
        own = {each.name for each in found if each.parent == path.parent}  # beside it
        assert needed <= OF_THE_SYSTEM | own, f"{path.name} needs {needed - OF_THE_SYSTEM - own}"
        newest = max(tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([\d.]+)", said))
        assert newest[:2] <= NEWEST_GLIBC, f"{path.name} needs glibc {newest}"
        assert not re.findall(r"GLIBCXX_|CXXABI_", said), path.name
        if needed & own:  # it looks for them where it lies, and nowhere else
            said = said.replace("Library runpath: [$ORIGIN]", "").replace("(RUNPATH)", "")
        assert not re.search(r"RPATH|RUNPATH|runpath|\.symtab|\.debug_info", said), path.name
        # Where it was built is nobody's business, and would make builds of two folders differ.
        assert re.findall(rb"/(?:collectives|runtime|launcher|bindings)/[\w/]+\.(?:cc|h)\b", path.read_bytes())[:3] == [], path.name
    library = unpacked / "rueda/lib/librueda.so.2"
    assert "[librueda.so.2]" in subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout


def test_it_is_small(wheel, unpacked):
    if (unpacked / "rueda/lib/librueda_cuda.so").exists():
        pytest.skip("it has the CUDA kernels")
    assert wheel.stat().st_size <= MOST_BYTES


def test_auditwheel_agrees(wheel):
    pytest.importorskip("auditwheel")
    command = [sys.executable, "-m", "auditwheel", "show", wheel]
    said = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    found = re.search(r'(?:platform tag|tag to): "manylinux_2_(\d+)_', said)
    assert found and int(found.group(1)) <= NEWEST_GLIBC[1], said


def test_one_version_everywhere(unpacked):
    version = re.search(r"project\(rueda VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert metadata(unpacked)["Version"] == version == rueda.__version__
    assert f'#define RUEDA_VERSION "{version}"' in (unpacked / "rueda/include/rueda/rueda.h").read_text()
    for program in ("ruedarun", "rueda"):
        said = subprocess.run([unpacked / "rueda/bin" / program, "--version"], capture_output=True, text=True)
        assert version in said.stdout, said


def test_a_plain_install_pulls_numpy_alone(unpacked):
    needs = metadata(unpacked).get_all("Requires-Dist")
    assert [need for need in needs if "extra ==" not in need] == ["numpy>=1.21"]
    assert set(metadata(unpacked).get_all("Provides-Extra")) == {"torch", "jax", "keras", "ray", "spark", "parquet"}


def test_it_runs_from_a_path_with_spaces_and_a_home_that_cannot_be_written(unpacked, tmp_path):
    there = tmp_path / "somewhere else"
    unpacked.rename(there)
    try:
        home = tmp_path / "home"
        home.mkdir(mode=0o500)
        program = "import rueda; rueda.init(); print(rueda.__file__)"
        done = subprocess.run(
            [there / "rueda/bin/ruedarun", "-np", "2", sys.executable, "-c", program],
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(there), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert done.returncode == 0, done
        assert done.stdout.count(str(there / "rueda/__init__.py")) == 2, done
    finally:
        there.rename(unpacked)


def test_python_tells_where_headers_and_libraries_are(unpacked):
    for option, name in [
        ("--include-dir", "rueda/rueda.h"),
        ("--library-dir", "librueda.so.2"),
        ("--cmake-dir", "ruedaConfig.cmake"),
        ("--pkg-config-dir", "rueda.pc"),
    ]:
        command = [sys.executable, "-m", "rueda", option]
        done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True, check=True)
        assert (pathlib.Path(done.stdout.strip()) / name).is_file(), done.stdout
    wrong = subprocess.run([sys.executable, "-m", "rueda", "--nothing"], cwd=unpacked, capture_output=True, text=True)
    assert wrong.returncode == 2 and "--cmake-dir" in wrong.stdout


def test_the_source_package_has_sources_and_no_binary(tmp_path):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("rueda-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.split("/", 1)[1]: member for member in archive.getmembers() if member.isfile()}
        for name, member in names.items():
            assert archive.extractfile(member).read(4) != b"\x7fELF", name
    for name in (
        "CMakeLists.txt LICENSE THIRD_PARTY README.md pyproject.toml bindings/python/rueda/__init__.py scripts/cmake/RuedaInstall.cmake "
        "bindings/c/include/rueda/rueda.h launcher/main.cc runtime/README.md scripts/setup PKG-INFO"
    ).split():
        assert name in names, name
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    missing = {name for name in tracked if name.endswith((".cc", ".h", ".hpp", ".py", ".proto", ".cmake"))} - set(names)
    assert {name for name in missing if (ROOT / name).exists()} == set()


def test_a_shell_completes_what_help_lists(unpacked):
    file = unpacked / "rueda/share/bash-completion/completions/ruedarun"
    for words, expected in (("--outp", "--output-prefix --output-filename"), ("-n", "-n -np")):
        program = f"source '{file}'; COMP_WORDS=(ruedarun {words}); COMP_CWORD=1; _ruedarun; printf '%s ' ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected.split(), done


def configure(tmp_path, *options, path=None):
    folder = tmp_path / "build"
    return subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options],
        env={"PATH": path or os.environ["PATH"]}, capture_output=True, text=True,
    )  # fmt: skip


def test_what_the_build_lacks_is_named_with_its_packages(tmp_path):
    done = configure(tmp_path, "-DCMAKE_IGNORE_PATH=/usr/include")
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    for text in ("spdlog/spdlog.h (libspdlog-dev)", "CLI/CLI.hpp (libcli11-dev)", "sodium.h (libsodium-dev)"):
        assert text in said, said
    assert re.search(r"apt-get install .*libspdlog-dev .*libcli11-dev", said), said


def test_a_missing_compiler_is_named_with_its_package(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    import shutil

    for name in ("cmake", "ninja"):
        (tools / name).symlink_to(shutil.which(name))
    done = configure(tmp_path, path=str(tools))
    assert done.returncode != 0 and "apt-get install g++" in " ".join(done.stderr.split()), done.stderr
