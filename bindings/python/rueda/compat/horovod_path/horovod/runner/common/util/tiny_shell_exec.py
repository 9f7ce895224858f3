"""Horovod's ``horovod.runner.common.util.tiny_shell_exec``, by rueda."""

import io

from horovod.runner.common.util import safe_shell_exec


def execute(command, env=None):
    """(all that the command prints, its exit code)."""
    printed = io.StringIO()
    code = safe_shell_exec.execute(command, env=env, stdout=printed, stderr=printed)
    return printed.getvalue(), code
