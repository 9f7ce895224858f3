"""Byte arrays from rank to rank, of which only the pieces travel that the other has not; each is checked by its digest.

    sender    head: how long, which pieces, their digests ──> receiver
              pieces, a window at a time                  ──>
              <── which of them came wrong: they come again, TRIES times in all

Pairs work side by side. In its window number k each rank waits for the k-th windows of all its pairs only, which their
other ends have begun before they wait, so that nobody waits in a circle.
"""

import collections

from rueda._array_collectives import recv, recv_async, send_async
from rueda._numpy import np
from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError
from rueda.elastic._transfer import PIECE, TRIES, WINDOW, digest_of

TAG = 0x4D49  # of the messages between ranks

Package = collections.namedtuple("Package", "array table digests changed")
Package.__doc__ = """What is sent: bytes, a table of int64 that comes with them, digests of all pieces, numbers of those that travel."""


def package(array, table, known=()):
    """`Package` for a rank that has the pieces with the digests ``known``, in their places."""
    digests = np.empty((-(-array.size // PIECE), 16), np.uint8)
    for k in range(len(digests)):
        digests[k] = digest_of([_piece(array, k)])
    changed = [k for k in range(len(digests)) if k >= len(known) or (digests[k] != known[k]).any()]
    return Package(array, table, digests, changed)


def exchange(sends, receives):
    """Sends packages, and returns what is received: a list of (array, table).

    Parameters
    ----------
    sends : list of (int, Package)
        To which rank.
    receives : list of (int, numpy.ndarray or None)
        From which rank, and what that expects to be there already.
    """
    begun = [handle for target, package in sends for handle in _send_head(target, package)]
    incoming = [_Incoming(source, base) for source, base in receives]
    _end(begun)
    outgoing = [(target, package, package.changed) for target, package in sends]
    arriving = [(each, each.changed) for each in incoming]
    for _ in range(TRIES):
        _move(outgoing, arriving)
        wrong = [(each, each.wrong(pieces)) for each, pieces in arriving]
        begun = [send_async(_bits(pieces, was), each.source, TAG) for (each, pieces), (_, was) in zip(wrong, arriving)]
        outgoing = [(target, package, _again(target, pieces)) for target, package, pieces in outgoing]
        _end(begun)
        outgoing = [each for each in outgoing if each[2]]
        arriving = [each for each in wrong if each[1]]
    if outgoing or arriving:
        raise HorovodInternalError(
            f"pieces of the local= state came wrong {TRIES} times over: the memory or the network of a host changes bits"
        )
    return [(each.array, each.table) for each in incoming]


class _Incoming:
    """One package on its way; built of what was there and what comes."""

    def __init__(self, source, base):
        self.source = source
        length, rows, count = recv(np.empty(3, np.int64), source, TAG)
        self.array = np.empty(length, np.uint8)
        if base is not None:
            both = min(base.size, self.array.size)
            self.array[:both] = base[:both]
        numbers = recv(np.empty(rows * 3 + count + 1, np.int64), source, TAG)
        self.table, self.changed = numbers[: rows * 3].reshape(rows, 3), numbers[rows * 3 : -1].tolist()
        self._digests = recv(np.empty((count + 1, 16), np.uint8), source, TAG)
        self._row = {piece: row for row, piece in enumerate(self.changed)}

    def wrong(self, pieces):
        """Those of these whose digests are others."""
        return [k for k in pieces if (digest_of([_piece(self.array, k)]) != self._digests[self._row[k]]).any()]


def _send_head(target, package):
    lengths = np.array([package.array.size, len(package.table), len(package.changed)], np.int64)
    # One more each, as nothing cannot be sent.
    numbers = np.array([*np.ravel(package.table), *package.changed, 0], np.int64)
    digests = np.concatenate([package.digests[package.changed], np.zeros((1, 16), np.uint8)])
    return [send_async(each, target, TAG) for each in (lengths, numbers, digests)]


def _move(outgoing, arriving):
    most = max([len(pieces) for *_, pieces in (*outgoing, *arriving)], default=0)
    for first in range(0, most, WINDOW):
        window = slice(first, first + WINDOW)
        begun = [send_async(_piece(package.array, k), target, TAG) for target, package, pieces in outgoing for k in pieces[window]]
        begun += [recv_async(_piece(each.array, k), each.source, TAG) for each, pieces in arriving for k in pieces[window]]
        _end(begun)


def _bits(wrong, pieces):
    wrong = set(wrong)
    return np.array([0, *(k in wrong for k in pieces)], np.uint8)


def _again(target, pieces):
    bits = recv(np.empty(len(pieces) + 1, np.uint8), target, TAG)
    return [k for k, bit in zip(pieces, bits[1:]) if bit]


def _piece(array, k):
    return array[k * PIECE : (k + 1) * PIECE]


def _end(handles):
    for handle in handles:
        runtime.synchronize(handle)
