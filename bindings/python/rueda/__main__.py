"""``python -m rueda``: commands of ``rueda`` that are written in Python (demo, new, migrate), or where this package keeps what C and C++ programs are built with.

One option, one line: --include-dir, --library-dir, --cmake-dir (for ``rueda_DIR`` or ``CMAKE_PREFIX_PATH``),
--pkg-config-dir (for ``PKG_CONFIG_PATH``), --share-dir (manual pages, completions of shells), --version.
"""

import os
import sys

import rueda_launcher

from rueda import begin

_FOLDER = os.path.dirname(os.path.abspath(__file__))
PLACES = {
    "--include-dir": "include",
    "--library-dir": "lib",
    "--cmake-dir": "lib/cmake/rueda",
    "--pkg-config-dir": "lib/pkgconfig",
    "--share-dir": "share",
}


def main(arguments):
    if arguments and arguments[0] in rueda_launcher.IN_PYTHON:
        return begin.main(arguments)
    (wanted,) = arguments if len(arguments) == 1 else ("--help",)
    if wanted == "--version":
        from rueda import __version__

        print(__version__)
    elif wanted in PLACES:
        folder = os.path.join(_FOLDER, PLACES[wanted])
        if not os.path.isdir(folder):
            sys.exit(f"{folder} is not there: this is a source tree that was not installed (pip install .)")
        print(folder)
    else:
        print(__doc__.strip())
        return 0 if wanted in ("--help", "-h") and arguments else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
