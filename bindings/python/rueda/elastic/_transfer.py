"""Gives all ranks rank 0's memory; only what differs travels, and every piece of it is checked.

    rank 0    digests of its pieces ──broadcast──┐
    each      which of mine are other ones? ─────┴──gather──> who holds what, known to all
    a holder  ──piece──> who lacks it: digest right? else from another holder, TRIES times in all

A newcomer on a host with ranks that hold the state does not wait for that: it reads theirs while they compute digests
(`_reading`), and digests each chunk as it comes, while that is in the processor's cache. Those who train on make theirs, where they
can, before they meet it (`Early`).

Where more ranks lack something than hold all of it (the first start of a job), all of it is broadcast, and
checked likewise. Digests are of 128 bits (XXH3): they find what chance changes.
"""

import collections
import concurrent.futures
import ctypes
import os
import threading

from rueda import _ffi
from rueda._array_collectives import allgather, broadcast, broadcast_async, recv_async, send_async
from rueda._numpy import np
from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.exceptions import HorovodInternalError
from rueda.elastic._reading import Offer, Ranges, Source

PIECE = 4 << 20  # bytes
WINDOW = 8  # pieces that a rank has under way
READERS = 4  # threads of a newcomer, as far as there are processors
TRIES = 3
TAG = 0x5354  # of the messages between ranks

Moved = collections.namedtuple("Moved", "pieces wrong")
Moved.__doc__ = "How many pieces have come to this rank, and how many of them had to come again."


class Early:
    """Digests of arrays, by a thread, while this rank enters the epoch in which it shares them.

    Whoever makes it vouches that they stay as they are until then.
    """

    def __init__(self, arrays):
        self._ranges = Ranges(arrays, _cut([array.size for array in arrays]))
        self._thread = threading.Thread(target=self._ranges.digest_all, name="rueda-digests")
        self._thread.start()

    def ranges_of(self, arrays):
        """The `Ranges` of these arrays with their digests, which it waits for; None if they are others."""
        self._thread.join()
        return self._ranges if self._ranges.are_of(arrays) else None


def share(arrays, what, names=(), holders=None, offered=None, early=None):
    """Fills ``arrays`` with what rank 0 has in its own. All ranks call it; returns `Moved`.

    Parameters
    ----------
    arrays : list of numpy.ndarray
        Of uint8, one-dimensional, writable; as many and as long on all ranks.
    what : str
        What they are, for messages.
    names : iterable of str
        Theirs; the same on all ranks.
    holders : list of int, optional
        Ranks that probably hold what rank 0 does, while others probably do not; by default the epoch says it.
    offered : list of numpy.ndarray, optional
        What others may read instead: copies of ``arrays``. If one is none, its pieces come by messages.
    early : Early, optional
        Of what is offered, which is what ``arrays`` have.

    Raises
    ------
    ValueError
        On all ranks: their arrays differ in number, names or sizes.
    HorovodInternalError
        A rank was lost; or a piece came wrong `TRIES` times. What a rank holds in ``arrays`` is then of no use.
    """
    pieces = _cut([array.size for array in arrays])
    offered = arrays if offered is None else offered
    offer = Offer(offered)
    places = _meet([array.size for array in arrays], what, list(names), offer)
    if basics.size() == 1 or not pieces:
        return Moved(0, 0)
    sources = _sources(places, _holders() if holders is None else holders)
    digested = None if early is None or sources else early.ranges_of(offered)
    return _Exchange(arrays, pieces, what, sources, digested).run()


def _cut(sizes):
    """Of each piece, its parts: (array, first byte, byte behind the last)."""
    pieces, room = [], 0
    for place, size in enumerate(sizes):
        first = 0
        while first < size:
            if room == 0:
                pieces.append([])
                room = PIECE
            last = min(size, first + room)
            pieces[-1].append((place, first, last))
            room -= last - first
            first = last
    return pieces


def _meet(sizes, what, names, offer):
    """Of each rank (its host, the words of its offer), when all have the same."""
    layout = digest_of([np.frombuffer(repr((sizes, names)).encode(), np.uint8)]).view(np.int64)
    mine = np.array([len(sizes), sum(sizes), *layout, basics.cross_rank(), *offer.words], np.int64)
    all_ranks = allgather(mine[np.newaxis])
    for rank, other in enumerate(all_ranks):
        if (other[:4] != mine[:4]).any():
            raise ValueError(
                f"the {what} of rank {rank} ({other[0]} tensors, {other[1]:,} bytes) differs in names or sizes from "
                f"that of rank {basics.rank()} ({len(sizes)} tensors, {sum(sizes):,} bytes): build the same on all ranks"
            )
    return [(int(other[4]), other[5:]) for other in all_ranks]


def _holders():
    """Ranks that hold the newest commit of a job that goes on."""
    epoch = runtime.epoch
    if epoch is None or not epoch.elastic:
        return []
    return [rank for rank, holds in enumerate(epoch.has_target) if holds]


def _sources(places, holders):
    """Those of this host, for a rank that is none of the holders."""
    mine = basics.rank()
    if mine in holders:
        return []
    found = [Source(places[rank][1]) for rank in holders if places[rank][0] == places[mine][0]]
    return [source for source in found if source.is_there]


def _processors():
    return len(os.sched_getaffinity(0))


def digest_of(parts):
    """The digest of byte arrays, one after the other: 16 uint8."""
    digest = np.empty(16, np.uint8)
    addresses = (ctypes.c_void_p * len(parts))(*(part.ctypes.data for part in parts))
    lengths = (ctypes.c_size_t * len(parts))(*(part.size for part in parts))
    _ffi.library.rueda_digest(addresses, lengths, len(parts), digest.ctypes.data)
    return digest


class _Exchange:
    """One `share`: what this rank has, what all ranks have, and what is under way."""

    def __init__(self, arrays, pieces, what, sources, digested):
        self.arrays, self.pieces, self.what = arrays, pieces, what
        self.rank, self.size = basics.rank(), basics.size()
        self.wrong = self.come = 0
        self.ranges = Ranges(arrays, pieces) if digested is None else digested
        self.sources = [(source, source.addresses(self.ranges)) for source in sources]
        if digested is None:
            self.digest_all()
        self.right = broadcast(self.ranges.digests, 0)
        self.held = np.all(self.ranges.digests == self.right, axis=1)  # of each piece, whether this rank has it
        if sources:
            self.come, self.wrong = len(pieces), int((~self.held).sum())

    def digest_all(self):
        """Its pieces as this rank has them, when it has read what it can read."""
        threads = min(READERS, _processors()) if self.sources else _processors() // basics.local_size()
        left = collections.deque(range(len(self.pieces)))
        if threads < 2 or len(left) < 2 * threads:
            return self.digest_each(left)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for each in [pool.submit(self.digest_each, left) for _ in range(threads)]:
                each.result()
        return None

    def digest_each(self, left):
        """Those that are left, until other threads have taken the last."""
        while left:
            try:
                piece = left.popleft()
            except IndexError:
                return
            if self.sources:
                source, addresses = self.sources[piece % len(self.sources)]
                if source.read(self.ranges, piece, addresses):
                    continue
            self.ranges.digest(piece)  # of what it has, or of what has come in part: where it lacks it the digest is a wrong one

    def run(self):
        holds = self.known_to_all()
        whole = int(holds.all(axis=1).sum())
        if self.size - whole > whole:
            self.broadcast_lacking(holds)
            holds = self.known_to_all()
        tried = np.zeros_like(holds)  # [source, piece]: a rank got it from there, and wrong
        for _ in range(TRIES):
            if holds.all():
                break
            moves = self.moves(holds, tried)
            self.move(moves)
            holds = self.known_to_all()
            for piece, source, target in moves:
                tried[source, piece] |= not holds[target, piece]
        if holds.all():
            return Moved(self.come, self.wrong)
        raise HorovodInternalError(
            f"{int((~holds).sum())} pieces of the {self.what} came wrong {TRIES} times over: the memory or the "
            "network of a host changes bits"
        )

    def known_to_all(self):
        """[rank, piece]: who holds what."""
        return allgather(self.held.astype(np.uint8)[np.newaxis]).astype(bool)

    def parts(self, piece):
        return [self.arrays[place][first:last] for place, first, last in self.pieces[piece]]

    def look(self, piece, parts):
        """Whether a piece that has come is right."""
        right = bool((digest_of(parts) == self.right[piece]).all())
        self.held[piece] = right
        self.come += 1
        self.wrong += not right
        return right

    def broadcast_lacking(self, holds):
        """Every array of which some rank lacks something, from rank 0."""
        lacking = np.flatnonzero(~holds.all(axis=0))
        places = sorted({place for k in lacking for place, _, _ in self.pieces[k]})
        handles = [broadcast_async(self.arrays[i], 0, f"{self.what}.{i}", out=self.arrays[i]) for i in places]
        for handle in handles:
            runtime.synchronize(handle)
        for k in lacking:
            if not self.held[k]:
                self.look(k, self.parts(k))

    def moves(self, holds, tried):
        """[(piece, source, target)] in the order that all ranks keep. The work of sending is dealt out."""
        sent, moves = [0] * self.size, []
        for piece in range(len(self.pieces)):
            for target in np.flatnonzero(~holds[:, piece]):
                sources = np.flatnonzero(holds[:, piece] & ~tried[:, piece])
                if not sources.size:  # all have failed once: again
                    sources = np.flatnonzero(holds[:, piece])
                source = min(sources, key=lambda rank: (sent[rank], rank))
                sent[source] += 1
                moves.append((piece, int(source), int(target)))
        return moves

    def move(self, moves):
        """Round after round, so that no rank has too much under way and none waits in a circle."""
        before = []
        for turn in _turns(moves):
            under_way = [self.begin(*move) for move in turn if self.rank in move[1:]]
            self.end(before)
            before = under_way
        self.end(before)

    def begin(self, piece, source, target):
        parts = self.parts(piece)
        if self.rank == source:
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return send_async(whole, target, TAG), None, None
        whole = parts[0] if len(parts) == 1 else np.empty(sum(part.size for part in parts), np.uint8)
        return recv_async(whole, source, TAG), piece, whole

    def end(self, under_way):
        for handle, piece, whole in under_way:
            runtime.synchronize(handle)
            if piece is None or not self.look(piece, [whole]):
                continue
            parts = self.parts(piece)
            if len(parts) > 1:
                ends = np.cumsum([part.size for part in parts])
                for part, last in zip(parts, ends):
                    part[:] = whole[last - part.size : last]


def _turns(moves):
    turn, load = [], collections.Counter()
    for piece, source, target in moves:
        if max(load[source], load[target]) >= WINDOW:
            yield turn
            turn, load = [], collections.Counter()
        turn.append((piece, source, target))
        load.update((source, target))
    yield turn

