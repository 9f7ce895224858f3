"""Installs and builds what rueda is compared with, into build/bench."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

from .programs import BUILD, HOROVOD, RELEASE, REPO

HOROVOD_MINUTES = 20


def _words(name: str) -> List[str]:
    lines = (REPO / "scripts" / name).read_text(encoding="utf-8").splitlines()
    return [word for word in (line.split("#")[0].strip() for line in lines) if word]


def _say(text: str) -> None:
    print("== " + text, file=sys.stderr, flush=True)


def _debian_packages() -> None:
    if shutil.which("dpkg-query") is None:
        _say("not a Debian system: trusting that what scripts/packages_bench.txt lists is installed")
        return
    missing = [name for name in _words("packages_bench.txt") if subprocess.run(
        ["dpkg-query", "-W", "-f=${db:Status-Status}", name], capture_output=True, text=True).stdout != "installed"]
    if not missing:
        return
    root = [] if os.geteuid() == 0 else ["sudo"]
    _say("Debian packages: installing " + " ".join(missing))
    subprocess.run([*root, "apt-get", "update", "-q"], check=False)
    subprocess.run([*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-q", "-y",
                    "--no-install-recommends", *missing], check=True)


def build(who: str = "bench_peers") -> None:
    """The Release build with the peers' programs; seconds when nothing changed. ``who``: for messages."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "build.log", "w", encoding="utf-8") as log:
        for command in (["cmake", "--preset", "release", "-B", str(RELEASE), "-DRUEDA_BENCHMARKS=ON",
                         "-DRUEDA_BUILD_EXAMPLES=OFF"],
                        ["cmake", "--build", str(RELEASE), "--target", "rueda_benchmarks"]):
            done = subprocess.run(command, cwd=str(REPO), stdout=log, stderr=subprocess.STDOUT)
            if done.returncode:
                sys.exit(f"{who}: '{' '.join(command)}' failed; see {BUILD / 'build.log'}")


def _horovod() -> None:
    """Horovod with Gloo and Open MPI against Debian's PyTorch. Its rows say so when this fails."""
    if (HOROVOD / "horovodrun").exists():
        return
    _say(f"Horovod: building (at most {HOROVOD_MINUTES} minutes), log in build/bench/horovod.log")
    # Horovod asks for mpicxx; with two MPIs installed that name could be either.
    wrappers = BUILD / "openmpi-bin"
    wrappers.mkdir(exist_ok=True)
    for name in ("mpicc", "mpicxx", "mpic++", "mpirun", "mpiexec"):
        link = wrappers / name
        if not link.is_symlink():
            link.symlink_to(f"/usr/bin/{name}.openmpi")
    environment = dict(os.environ, PATH=f"{wrappers}:/usr/local/bin:/usr/bin:/bin", HOROVOD_WITH_PYTORCH="1",
                       HOROVOD_WITHOUT_TENSORFLOW="1", HOROVOD_WITHOUT_MXNET="1", HOROVOD_WITH_GLOO="1",
                       HOROVOD_WITH_MPI="1", MAKEFLAGS=f"-j{os.cpu_count()}")
    python = Path("/usr/bin/python3")  # Debian's: it sees Debian's PyTorch
    with open(BUILD / "horovod.log", "w", encoding="utf-8") as log:
        try:
            for command in ([str(python), "-m", "venv", "--system-site-packages", str(BUILD / "horovod")],
                            ["nice", str(HOROVOD / "pip"), "install", "--disable-pip-version-check", "--no-deps",
                             "--no-build-isolation", "--no-binary", "horovod", "-r",
                             str(REPO / "scripts" / "requirements_bench.txt")]):
                subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True,
                               timeout=60 * HOROVOD_MINUTES)
        except (subprocess.SubprocessError, OSError) as error:
            _say(f"Horovod could not be built ({type(error).__name__}); its rows will say so")


def setup(horovod: bool) -> int:
    _debian_packages()
    build()
    if horovod:
        _horovod()
    _say("ready: scripts/bench_peers")
    return 0
