"""The repository that the tests of this folder look at."""
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked():
    """Paths from the root of what git tracks or would; without git, of all files."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode == 0:
        return [path for path in listed.stdout.splitlines() if (ROOT / path).exists()]
    return [file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*") if file.is_file() and ".git" not in file.parts]
