"""The folder that makes ``import horovod`` mean rueda.

    ruedarun --horovod -np 2 python train.py                         puts it on PYTHONPATH for the ranks
    PYTHONPATH=$(python -m rueda.compat.horovod --path) srun ...     does the same for other launchers

It is asked for, never found by itself: a Horovod that is installed stays what ``import horovod``
means until the folder is on the path.
"""

import argparse
import os
import sys


def path():
    """The folder, absolute; it holds one package, ``horovod``."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "horovod_path")


def is_asked_for():
    """Whether ``import horovod`` means rueda in this process."""
    return path() in sys.path


def ask():
    """From now on it does."""
    if not is_asked_for():
        sys.path.insert(0, path())


def main():
    parser = argparse.ArgumentParser(
        prog="python -m rueda.compat.horovod",
        description="Makes `import horovod` mean rueda: put the folder first on PYTHONPATH.",
    )
    parser.add_argument("--path", action="store_true", required=True, help="print the folder")
    parser.parse_args()
    print(path())


if __name__ == "__main__":
    main()
