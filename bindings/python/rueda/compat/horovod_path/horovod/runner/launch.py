"""Horovod's ``horovod.runner.launch``, by rueda: the command horovodrun."""

from rueda.compat.horovodrun import parse_args, run_commandline  # noqa: F401

if __name__ == "__main__":
    run_commandline()
