"""The exceptions of rueda, with Horovod's names where Horovod has one."""


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree, a rank was lost, or the runtime is not running.

    After it every output (and, in place, every input) of the operation is unspecified.

    ``ranks_disagree``: the call was wrong, on this rank or compared with others; it would fail again.
    """

    ranks_disagree = False


class RankLostError(HorovodInternalError):
    """A rank of the job died or was declared dead. The same verdict on all ranks.

    Attributes
    ----------
    rank, pid : int
    host : str
    operation : str
        The last one that it submitted, as ``"allreduce.fc1.weight"``; ``""`` before its first.
    operations : int
        How many operations it had submitted. Where its whole host is lost this and the operation are
        what the host told last, up to a second before; ``"unknown"`` where it had not yet told any.
    step : int
        Optimizer steps that it had begun; 0 where no rueda optimizer is used.
    cause : str
        ``"killed by signal 9 (SIGKILL)"``. Signal and exit code are known once the dead process has
        been cleaned up, which nobody waits for: see ``cause_is_final``; the launcher's last lines
        always have it.
    cause_is_final : bool
    """

    rank = -1
    pid = 0
    host = ""
    operation = ""
    operations = 0
    step = 0
    cause = ""
    cause_is_final = False


class RankFailed(RuntimeError):
    """A rank that was started for a function raised, was killed, or left without a result.

    The message names the rank and holds its traceback; ``__cause__`` is the rank's exception where it can
    be pickled.

    Attributes
    ----------
    rank : int
        The rank that failed first.
    exit_code : int or None
        Of a job of ruedarun: the first failed rank's, 128 + signal if it was killed.
    node : str
        Where it was, in the words of Ray or Spark; ``""`` where that is not known.
    pid : int
        0 where that is not known.
    cause : str
        In one line.
    """

    def __init__(self, message, rank, exit_code=None, node="", pid=0, cause=""):
        super().__init__(message, rank, exit_code, node, pid, cause)
        self.rank = rank
        self.exit_code = exit_code
        self.node = node
        self.pid = pid
        self.cause = cause

    def __str__(self):
        return self.args[0]


class RemovedError(SystemExit):
    """The job goes on without this process, which ends with code 0 unless somebody catches this.

    ``reason``: why, in one sentence.
    """

    def __init__(self, reason=""):
        super().__init__(0)
        self.reason = reason

    def __str__(self):
        return self.reason


class DeadlineExceeded(TimeoutError):
    """The time given to ``synchronize`` passed. The operation goes on; its handle stays valid."""


class WrongCallError(HorovodInternalError, ValueError):
    """A wrong call for which Horovod raises one of the two and common sense expects the other."""


class HostsUpdatedInterrupt(RuntimeError):
    """The job's hosts changed. Nothing raises it yet: there is no elastic membership.

    ``skip_sync``: whether the state needs no synchronisation afterwards.
    """

    def __init__(self, skip_sync=False):
        super().__init__("the hosts of this job changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is not the one compiled against. Nothing raises it: rueda is compiled against none."""

    def __init__(self, name, version, installed_version):
        super().__init__(f"{name} {version} was expected, {installed_version} is installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self):
        return type(self), (self.name, self.version, self.installed_version)
