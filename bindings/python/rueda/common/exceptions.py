"""The exceptions of rueda, with Horovod's names where Horovod has one."""


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree, a rank was lost, or the runtime is not running.

    After it every output (and, in place, every input) of the operation is unspecified.
    """


class DeadlineExceeded(TimeoutError):
    """The time given to ``synchronize`` passed. The operation goes on; its handle stays valid."""


class WrongCallError(HorovodInternalError, ValueError):
    """A wrong call for which Horovod raises one of the two and common sense expects the other."""
