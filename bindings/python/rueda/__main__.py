"""``python -m rueda``: where this package keeps what C and C++ programs are built with.

One option, one line: --include-dir, --library-dir, --cmake-dir (for ``rueda_DIR`` or ``CMAKE_PREFIX_PATH``),
--pkg-config-dir (for ``PKG_CONFIG_PATH``), --version.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
PLACES = {
    "--include-dir": "include",
    "--library-dir": "lib",
    "--cmake-dir": "lib/cmake/rueda",
    "--pkg-config-dir": "lib/pkgconfig",
}


def main(arguments):
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
