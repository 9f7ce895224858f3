"""What fails becomes PyTorch's ``DistBackendError``, with rueda's attributes."""

from torch.distributed import DistBackendError

from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError


class CollectiveError(DistBackendError, HorovodInternalError):
    """An operation failed: the ranks disagree, the group was aborted or closed, or the job has ended."""


class LostRankError(CollectiveError, RankLostError):
    """A rank of the job died. ``rank``, ``host``, ``cause`` and more: see `rueda.RankLostError`."""


class CollectiveTimeout(CollectiveError, DeadlineExceeded):
    """Ranks did not come in time; the message names them."""


def as_backend_error(error):
    """The same error as a ``DistBackendError``; what is wrong on this rank alone stays as it is."""
    if isinstance(error, DistBackendError):
        return error
    for kind, ours in (
        (RankLostError, LostRankError),
        (DeadlineExceeded, CollectiveTimeout),
        (HorovodInternalError, CollectiveError),
    ):
        if isinstance(error, kind):
            raised = ours(*error.args)
            raised.__dict__.update(error.__dict__)
            return raised
    return error
