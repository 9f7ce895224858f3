"""State in pieces: what differs travels, from all who hold it, and no piece that has changed is taken."""

import threading

import numpy as np
import pytest
import rueda as hvd
import torch
from expect import raises, same
from rueda.elastic import _reading, _transfer
from rueda.torch.elastic._sharing import EarlyDigests, share_tensors
from worlds import ranks

PIECE = 1000
SIZES = 1, 0, 999, 2500, 7, 7, 4000  # bytes: pieces of several arrays, arrays of several pieces


class Wire:
    """What is sent between ranks, which may change a bit of it on the way."""

    def __init__(self, patch, changes=lambda number: False):
        self.sent, self.changes, self.send = 0, changes, _transfer.send_async
        patch.setattr(_transfer, "send_async", self)
        patch.setattr(_transfer, "PIECE", PIECE)

    def __call__(self, whole, target, tag):
        if self.changes(self.sent):
            whole = whole.copy()
            place, bit = divmod(self.sent * 7919 % (8 * whole.size), 8)
            whole[place] ^= 1 << bit
        self.sent += 1
        return self.send(whole, target, tag)


def content(rank):
    source = np.random.default_rng(rank)
    return [source.integers(0, 256, size, np.uint8) for size in SIZES]


def pieces():
    return -(-sum(SIZES) // PIECE)


@ranks(1, 2, 3)
def test_all_get_what_rank_0_has():
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        arrays = content(hvd.rank())
        moved = _transfer.share(arrays, "state")
    for mine, right in zip(arrays, content(0)):
        same(mine, right)
    assert moved == (0 if hvd.rank() == 0 else pieces(), 0)
    # Two that lack all of it, and one that has it: it is broadcast.
    assert wire.sent == (pieces() if hvd.size() == 2 and hvd.rank() == 0 else 0)


@ranks(3)
def test_only_what_differs_travels_and_all_who_hold_it_send():
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        arrays = content(0)
        if hvd.rank() == 1:
            for piece in (1, 3, 4, 6):
                place, first, _ = _transfer._cut(SIZES)[piece][0]
                arrays[place][first] ^= 1
        moved = _transfer.share(arrays, "state")
    for mine, right in zip(arrays, content(0)):
        same(mine, right)
    assert moved == (4 if hvd.rank() == 1 else 0, 0)
    assert wire.sent == (0 if hvd.rank() == 1 else 2)


@ranks(2, 3)
def test_a_piece_that_has_changed_on_the_way_is_fetched_again():
    lacks = hvd.rank() == hvd.size() - 1
    with pytest.MonkeyPatch.context() as patch:
        first = pieces() // (hvd.size() - 1)  # of each holder: what it sends at first
        Wire(patch, changes=lambda number: number % 2 == 0 and number < first)
        arrays = content(9 if lacks else 0)
        moved = _transfer.share(arrays, "state")
    for mine, right in zip(arrays, content(0)):
        same(mine, right)
    assert (moved.wrong > 2) == lacks and moved.pieces == (pieces() + moved.wrong if lacks else 0)


class Memory:
    """What is read from other ranks' memory, which may be refused or changed."""

    def __init__(self, patch, spoil=None):
        self.reads, self.spoil, self.read = 0, spoil, _reading.Ranges.read
        patch.setattr(_reading.Ranges, "read", lambda ranges, *arguments: self(ranges, *arguments))

    def __call__(self, ranges, piece, pid, addresses):
        self.reads += 1
        if self.spoil == "refused":
            return False
        done = self.read(ranges, piece, pid, addresses)
        if self.spoil == "torn" and self.reads % 3 == 0:
            place, first, _ = _transfer._cut(SIZES)[piece][-1]
            ranges._arrays[place][first] ^= 1
            ranges.digest(piece)
        if self.spoil == "another process":
            ranges._arrays[0][:1] ^= 1  # the cookie
        return done


@ranks(2, 3)
def test_a_newcomer_reads_what_others_of_its_host_hold():
    newcomer = hvd.size() - 1
    for spoil in None, "torn", "refused", "another process":
        with pytest.MonkeyPatch.context() as patch:
            wire, memory = Wire(patch), Memory(patch, spoil)
            arrays = content(9 if hvd.rank() == newcomer else 0)
            moved = _transfer.share(arrays, "state", holders=range(newcomer))
        for mine, right in zip(arrays, content(0)):
            same(mine, right)
        is_read = spoil in (None, "torn")
        if hvd.rank() == newcomer:
            assert moved.pieces == pieces() + moved.wrong and (moved.wrong > 1) == (spoil == "torn"), (spoil, moved)
            assert memory.reads == (newcomer + pieces() if is_read else newcomer), (spoil, memory.reads)
        else:
            assert moved == (0, 0) and memory.reads == 0
            assert (wire.sent > 0) == (spoil is not None), (spoil, wire.sent)


@ranks(2)
def test_a_large_state_is_read_by_several_threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_transfer, "_processors", lambda: 4)
        wire = Wire(patch)
        # The first reads wait for each other: all threads must be at it.
        together, read, readers = threading.Barrier(_transfer.READERS, timeout=60), _reading.Ranges.read, set()

        def reading(*arguments):
            me = threading.get_ident()
            if me != threading.main_thread().ident and me not in readers:
                readers.add(me)
                together.wait()
            return read(*arguments)

        patch.setattr(_reading.Ranges, "read", reading)
        arrays = [np.full(size, 1 + hvd.rank(), np.uint8) for size in [100, 3] * 2000]
        moved = _transfer.share(arrays, "state", holders=[0])
    assert all((array == 1).all() for array in arrays) and wire.sent == 0 and moved.wrong == 0
    assert not together.broken and len(readers) == (_transfer.READERS if hvd.rank() == 1 else 0)


@ranks(2)
def test_what_is_offered_may_be_a_copy_and_is_not_believed_to_be_one():
    lacks = hvd.rank() == 1
    for is_copy in True, False:
        with pytest.MonkeyPatch.context() as patch:
            wire = Wire(patch)
            arrays, offered = content(9 if lacks else 0), content(0 if is_copy else 5)
            moved = _transfer.share(arrays, "state", holders=[0], offered=offered)
        for mine, right in zip(arrays, content(0)):
            same(mine, right)
        assert (wire.sent > 0) == (not lacks and not is_copy)
        assert (moved.wrong > 0) == (lacks and not is_copy)


@ranks(2)
def test_what_always_comes_wrong_is_an_error_on_all_ranks():
    with pytest.MonkeyPatch.context() as patch:
        Wire(patch, changes=lambda number: True)
        with raises(hvd.HorovodInternalError, "the state came wrong 3 times"):
            _transfer.share(content(hvd.rank()), "state")


@ranks(3)
def test_other_sizes_are_an_error_on_all_ranks():
    with raises(ValueError, "the model of rank", "differs in names or sizes", "build the same on all ranks"):
        _transfer.share([np.zeros(3 + (hvd.rank() == 1), np.uint8)], "model")
    with raises(ValueError, "differs in names or sizes"):
        _transfer.share([np.zeros(3, np.uint8)], "model", [f"weight of {hvd.rank()}"])


def test_no_flipped_bit_is_accepted():
    source = np.random.default_rng(1)
    piece = source.integers(0, 256, 100_000, np.uint8)
    right = _transfer.digest_of([piece]).tobytes()
    assert _transfer.digest_of([piece[:77], piece[77:77], piece[77:]]).tobytes() == right
    for place in source.integers(0, 8 * piece.size, 10_000):
        piece[place // 8] ^= 1 << place % 8
        assert _transfer.digest_of([piece]).tobytes() != right
        piece[place // 8] ^= 1 << place % 8


@ranks(2, 3)
def test_digests_made_before_all_meet_are_used_unless_a_tensor_has_changed():
    newcomer = hvd.rank() == hvd.size() - 1
    for change in "none", "content", "another tensor", "another copy":
        tensors = [("first", torch.arange(3000.0)), ("second", torch.ones(7))]
        copies = [tensors[0][1].clone(), None]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_transfer, "PIECE", PIECE)
            patch.setattr(_transfer, "_holders", lambda: range(hvd.size() - 1))
            early = None if newcomer else EarlyDigests([tensor for _, tensor in tensors], lambda _: copies)  # noqa: B023
            if newcomer:
                tensors[0][1].zero_()
            else:
                early.of([tensor for _, tensor in tensors]).ranges_of([])  # waits for them
            if change == "content":
                tensors[0][1].add_(1)
                copies[0] = None
            if change == "another tensor":
                tensors[1] = "second", torch.full((7,), 2.0)
            if change == "another copy":
                copies[0] = copies[0].clone()
            later, digest = [], _reading.Ranges.digest
            patch.setattr(_reading.Ranges, "digest", lambda ranges, piece: (later.append(piece), digest(ranges, piece))[1])
            moved = share_tensors(tensors, "model", None if newcomer else lambda _: copies, early)  # noqa: B023
        assert torch.equal(tensors[0][1], torch.arange(3000.0) + (change == "content"))
        assert torch.equal(tensors[1][1], torch.full((7,), 2.0 if change == "another tensor" else 1.0))
        if newcomer:
            assert moved.pieces and moved.wrong == 0
        else:
            assert moved == (0, 0) and (later != []) == (change != "none"), (change, later)


def test_what_is_read_is_digested_as_it_is_then():
    source = np.random.default_rng(1)
    there = [source.integers(0, 256, size, np.uint8) for size in (300_000, 0, 1, *[70] * 200, 131_072)]  # more ranges than a call reads
    here = [np.zeros_like(array) for array in there]
    pieces = [[(place, 0, array.size) for place, array in enumerate(there)], [(0, 5, 200_005)]]
    offer = _reading.Offer(there)  # whose table is there as long as it is
    table = _reading.Source(offer.words)
    ranges, right = _reading.Ranges(here, pieces), _reading.Ranges(there, pieces)
    assert table.is_there and table.read(ranges, 0, table.addresses(ranges)) and all(map(np.array_equal, here, there))
    here[0][:] = 0
    assert table.read(ranges, 1, table.addresses(ranges)) and here[0][5:200_005].any() and not here[0][:5].any()
    for piece in 0, 1:
        right.digest(piece)
    assert (ranges.digests == right.digests).all() and (right.digests[1] == _transfer.digest_of([there[0][5:200_005]])).all()
    assert not table.read(ranges, 1, np.zeros_like(table.addresses(ranges)))  # no such memory


@ranks(2)
def test_tensors_of_all_kinds():
    def made(seed):
        torch.manual_seed(seed)
        gaps = torch.rand(6, 4).t()
        return {
            "bfloat16": torch.rand(3, 5).bfloat16(),
            "bool": torch.rand(9) > 0.5,
            "complex": torch.complex(torch.rand(2), torch.rand(2)),
            "empty": torch.empty(0, 3),
            "gaps": gaps,
            "number": torch.tensor(float(seed)),
            "parameter": torch.nn.Parameter(torch.rand(7)),
        }

    mine = made(hvd.rank())
    places = {name: tensor.data_ptr() for name, tensor in mine.items()}
    share_tensors(mine.items(), "model")
    for name, right in made(0).items():
        assert torch.equal(mine[name], right) and mine[name].data_ptr() == places[name], name
