"""Which rueda the scripts measure: a build of this checkout, or what the environment names.

A virtual environment may hold an older rueda, and a script that started the new launcher with the old library would measure
neither. So launcher, library and package come from one place.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "build/release"


def use(build=RELEASE):
    """Children get the launcher, the library and the package of `build`, unless RUEDA_RUEDARUN says which launcher; ends this
    program where they are missing. Returns the launcher."""
    chosen = os.environ.get("RUEDA_RUEDARUN")
    if chosen:
        return chosen
    found = {"RUEDA_RUEDARUN": Path(build, "bin/ruedarun"), "RUEDA_LIBRARY": Path(build, "lib/librueda.so")}
    for path in found.values():
        if not path.exists():
            sys.exit(f"{Path(sys.argv[0]).name}: there is no {path}: build first (scripts/quickstart), or set RUEDA_RUEDARUN")
    os.environ.update({name: str(path) for name, path in found.items()}, PYTHONPATH=str(ROOT / "bindings/python"))
    return str(found["RUEDA_RUEDARUN"])
