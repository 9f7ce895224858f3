"""Small helpers with Horovod's names."""

import contextlib
import functools
import importlib.util
import os
import re

from rueda.common import basics


@contextlib.contextmanager
def env(**variables):
    """Sets environment variables for the duration of a ``with`` block; None values are ignored."""
    wanted = {key: str(value) for key, value in variables.items() if value is not None}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def split_list(items, count):
    """Cuts a list into ``count`` parts whose lengths differ by at most one, longer parts first."""
    least, longer = divmod(len(items), count)
    parts, start = [], 0
    for part in range(count):
        end = start + least + (1 if part < longer else 0)
        parts.append(items[start:end])
        start = end
    return parts


def num_rank_is_power_2(num_rank):
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_version_greater_equal_than(ver, target):
    """Whether version ``ver`` is ``target`` ("major.minor.patch") or newer; both are strings."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"expected two versions as strings, got {ver!r} and {target!r}")
    if len(target.split(".")) != 3:
        raise ValueError(f"expected a target of the form major.minor.patch, got {target!r}")
    return _version_key(ver) >= _version_key(target)


def support_non_legacy_keras_optimizers(k):
    """Whether a Keras has the optimizers that Horovod calls new: every Keras that rueda serves has."""
    return is_version_greater_equal_than(k.__version__, "2.11.0")


def _version_key(text):
    match = re.match(r"(\d+(?:\.\d+)*)(.*)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    release = [int(part) for part in match.group(1).split(".")]
    while release and release[-1] == 0:
        release.pop()
    is_final = re.match(r"[._-]?(a|b|c|rc|alpha|beta|pre|dev)", match.group(2)) is None
    return release, is_final


_SERVED = ("torch", "tensorflow", "keras")


def extension_available(ext_base_name, verbose=False):
    """Whether rueda serves a framework, 'torch', 'tensorflow' or 'keras', and it can be imported."""
    return ext_base_name in _SERVED and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name, ext_env_var, pkg_path, *args):
    """ImportError for a framework that rueda does not serve."""
    if ext_name not in [f"horovod.{name}" for name in _SERVED]:
        raise ImportError(
            f"{ext_name} is not there: rueda serves PyTorch, TensorFlow and Keras", name=ext_name
        )


def check_installed_version(name, version, exception=None):
    """Nothing to check: rueda is compiled against no framework, so every version is the right one."""


def _cache(function):
    """A function that remembers its results, by its arguments."""
    return functools.lru_cache(maxsize=None)(function)


# What Horovod's scripts ask before they choose a way to run. Horovod loads its extensions for the
# answer, one process each; rueda has none, so the answers are those of `rueda.common.basics`.


def gpu_available(ext_base_name, verbose=False):
    """Whether GPU tensors can be used with a framework: not in this version of rueda."""
    return False


def mpi_built(verbose=False):
    return basics.mpi_built()


def gloo_built(verbose=False):
    return basics.gloo_built()


def nccl_built(verbose=False):
    return basics.nccl_built()


def ddl_built(verbose=False):
    return basics.ddl_built()


def ccl_built(verbose=False):
    return basics.ccl_built()
