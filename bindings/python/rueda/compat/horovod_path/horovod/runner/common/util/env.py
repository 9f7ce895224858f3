"""Horovod's ``horovod.runner.common.util.env``, by rueda."""

import os
import re

IGNORE_REGEXES = {r"BASH_FUNC_.*\(\)", "OLDPWD", "_HOROVOD_SECRET_KEY"}


def is_exportable(name):
    """Whether a variable may go to other hosts."""
    return not any(re.fullmatch(pattern, name) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size():
    """(rank, size) of this process as its launcher says; (0, 1) without one."""
    for rank, size in (
        ("RUEDA_RANK", "RUEDA_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ.get(size, 1))
    return 0, 1
