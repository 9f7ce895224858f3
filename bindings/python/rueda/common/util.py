"""Small helpers with Horovod's names."""

import contextlib
import os


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


def extension_available(ext_base_name, verbose=False):
    """Whether rueda serves a framework: 'torch' where PyTorch can be imported."""
    import importlib.util

    return ext_base_name == "torch" and importlib.util.find_spec("torch") is not None
