# Shared by the scripts of this folder; to be sourced. Sets REPO and PYTHON, knows --python.

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$REPO/.venv"
JOBS="$(nproc 2>/dev/null || echo 2)"

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# debian_packages SECTION...: what these sections of scripts/packages.txt list, one per line.
debian_packages() {
  awk -v sections=" $* " '
    { sub(/#.*/, "") }
    /^\[/ { wanted = index(sections, " " substr($1, 2, length($1) - 2) " ") }
    /^[^[]/ && wanted && NF { print $1 }' "$REPO/scripts/packages.txt"
}

# resolve_python P: the absolute path of somebody's own interpreter, into OWN_PYTHON.
resolve_python() {
  OWN_PYTHON="$(command -v -- "$1")" || die "--python $1: no such program"
  OWN_PYTHON="$(cd "$(dirname "$OWN_PYTHON")" && pwd)/$(basename "$OWN_PYTHON")"
  "$OWN_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
    die "--python $1: Python 3.9 or newer is needed, this is $("$OWN_PYTHON" --version 2>&1)"
}

# After scripts/setup: `python` and `ruedarun` mean ours. With --python nothing is installed into the
# interpreter's packages: the package is found in the source tree.
use_python() {
  if [[ -n "${OWN_PYTHON:-}" ]]; then
    PYTHON="$OWN_PYTHON"
    export PYTHONPATH="$REPO/bindings/python${PYTHONPATH:+:$PYTHONPATH}"
    export PATH="$REPO/bindings/python/rueda/bin:$PATH"
  else
    PYTHON="$VENV/bin/python"
    export PATH="$VENV/bin:$PATH"
  fi
}

# Compilations go through ccache where it is there; takes effect when a build folder is first configured. What one clone has
# compiled serves clones in other folders: paths below this one count as relative ones.
use_ccache() {
  command -v ccache >/dev/null || return 0
  local launcher="env;CCACHE_BASEDIR=$REPO;CCACHE_NOHASHDIR=true;ccache"
  export CMAKE_C_COMPILER_LAUNCHER="${CMAKE_C_COMPILER_LAUNCHER-$launcher}"
  export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-$launcher}"
}
