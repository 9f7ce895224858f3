"""Runs one rank's plan on tensors: a generator that yields whenever it needs what another rank has not sent yet.

In exchange k a rank computes with what came, while the rows of k + 1 travel; k + 2 is asked for when k's slot is free. In backward
the gradients of rows that came go back as an exchange of their own and are added by their owner one exchange later. Every
rank goes through the same exchanges in the same order, also where it has nothing to send or receive. Sums are float32.
"""

import functools

import torch

from rueda.attention.device._partial import Partial
from rueda.attention.device._pieces import schedule_of


def _slice(rows):
    return slice(rows.begin, rows.begin + (rows.count - 1) * rows.step + 1, rows.step)


class Heads:
    """KV heads of a piece as slices of the rank's tensors, with the query heads that use them."""

    def __init__(self, plan):
        self.plan, self.group = plan, plan.spec.heads // plan.spec.kv_heads

    def _queries(self, head):
        begin = max(head * self.group, self.plan.q_begin) - self.plan.q_begin
        end = min((head + 1) * self.group, self.plan.q_end) - self.plan.q_begin
        return begin, max(begin, end)

    def of(self, heads, first):
        """[(slice of KV heads, slice of query heads)]; the KV tensor's first head is ``first``."""
        begin, end, step = heads
        every = [h for h in range(begin, end, step) if self._queries(h)[1] > self._queries(h)[0]]
        if not every:
            return []
        counts = {self._queries(h)[1] - self._queries(h)[0] for h in every}
        low, high = self._queries(every[0])[0], self._queries(every[-1])[1]
        keys = slice(every[0] - first, every[-1] - first + 1, step)
        if len(counts) == 1 and (step == 1 or len(every) == 1):
            return [(keys, slice(low, high))]
        if counts == {1} and self.group == 1:
            return [(keys, slice(low, high, step))]
        return [
            (slice(h - first, h - first + 1), slice(*self._queries(h))) for h in every
        ]


def _set_of(sets, piece):
    """Index of the set of a message that has the piece's heads."""
    for index, found in enumerate(sets):
        if found.head_begin <= piece.heads[0] < found.head_end:
            return index
    raise AssertionError(f"heads {piece.heads} did not travel")


class Rank:
    """One rank's calls. ``link`` is its side of a transport; tensors are those of `plan`'s rows and heads."""

    def __init__(self, plan, link):
        self.plan, self.link, self.heads = plan, link, Heads(plan)
        self.scale = plan.spec.scale or plan.spec.head_dim**-0.5

    def _message(self, sets, *tensors):
        """Views of the rows that travel: for each set and tensor a list, one for each run."""
        first = self.plan.kv_begin
        return [
            [x[:, _slice(run), found.head_begin - first : found.head_end - first] for run in found.runs]
            for found in sets
            for x in tensors
        ]

    def _shapes(self, sets, tensors):
        batch, width = self.plan.spec.batch, self.plan.spec.head_dim
        return [
            (batch, sum(run.count for run in found.runs), found.head_end - found.head_begin, width)
            for found in sets
            for _ in range(tensors)
        ]

    def _alike(self, pieces, key_of):
        """Pieces of the same heads and tensor of keys, together: tuples."""
        groups = {}
        for piece in pieces:
            groups.setdefault((piece.heads, key_of(piece)[0].data_ptr()), []).append(piece)
        return [tuple(group) for group in groups.values()]

    def _post(self, schedule, handles, key, k, v, wire):
        if key >= schedule.exchanges:
            return
        send = receive = None
        if key in schedule.sends:
            peer, sets = schedule.sends[key]
            send = (peer, self._message(sets, k, v))
        if key in schedule.receives:
            peer, sets, _ = schedule.receives[key]
            receive = (peer, self._shapes(sets, 2))
        handles[key] = self.link.exchange("kv", key, send, receive, wire)

    def _exchanges(self, schedule, k, v, local, serve, after=None):
        """The order of everything; generator."""
        wire = k.dtype
        if self.plan.spec.kv_wire:
            wire = getattr(torch, self.plan.spec.kv_wire)
        handles = {}
        ahead = schedule.exchanges if self.plan.spec.gather_first else 2
        for key in range(min(ahead, schedule.exchanges)):
            self._post(schedule, handles, key, k, v, wire)
        local()
        for key in range(schedule.exchanges):
            handle = handles.pop(key)
            while not handle.ready():
                yield
            came = [x.to(k.dtype) for x in handle.wait()]
            if key in schedule.receives:
                serve(key, came)
            handle.release()
            self._post(schedule, handles, key + ahead, k, v, wire)
            if after is not None:
                yield from after(key)

    def forward(self, q, k, v, choose):
        """(out, lse, low); see `Partial.finish`. Generator."""
        schedule, sums = schedule_of(self.plan), Partial(q)

        def compute(pieces, key_of):
            own, rest = choose.split(pieces)
            for alike in self._alike(own, key_of):
                keys, values, first = key_of(alike[0])
                for kv_heads, q_heads in self.heads.of(alike[0].heads, first):
                    choose.forward_own(
                        alike, sums.of(slice(None), q_heads), q[:, :, q_heads], keys[:, :, kv_heads],
                        values[:, :, kv_heads], self.scale,
                    )  # fmt: skip
            for piece in rest:
                keys, values, first = key_of(piece)
                for kv_heads, q_heads in self.heads.of(piece.heads, first):
                    rows, key_rows = _slice(piece.q), _slice(piece.k)
                    choose.forward(
                        piece, sums.of(rows, q_heads), q[:, rows, q_heads],
                        keys[:, key_rows, kv_heads], values[:, key_rows, kv_heads], self.scale,
                    )  # fmt: skip

        def local():
            compute(schedule.own, lambda piece: (k, v, self.plan.kv_begin))

        def serve(key, came):
            _, sets, pieces = schedule.receives[key]

            def key_of(piece):
                index = _set_of(sets, piece)
                return came[2 * index], came[2 * index + 1], sets[index].head_begin

            compute(pieces, key_of)

        yield from self._exchanges(schedule, k, v, local, serve)
        return sums.finish(q.dtype)

    def backward(self, dout, dlse, q, k, v, out, lse, low, choose):
        """(dq, dk, dv), float32. Generator."""
        schedule = schedule_of(self.plan, True)
        given, fold = dout, None
        if low is not None:
            # exp(s - lse - low) = exp(s - lse) * exp(-low): what follows from it carries the factor instead.
            fold = torch.exp(-low)
            dout = (dout * fold.transpose(1, 2).unsqueeze(-1)).to(dout.dtype)

        @functools.lru_cache(maxsize=None)
        def delta():
            """Only some kernels ask for it."""
            found = (given.float() * out.float()).sum(-1).transpose(1, 2)
            if dlse is not None:
                found = found - dlse
            return found if fold is None else found * fold

        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))

        def compute(pieces, key_of):
            own, rest = choose.split(pieces)
            for alike in self._alike(own, key_of):
                keys, values, dkeys, dvalues, first = key_of(alike[0])
                for kv_heads, q_heads in self.heads.of(alike[0].heads, first):
                    grads = dq[:, :, q_heads], dkeys[:, :, kv_heads], dvalues[:, :, kv_heads]
                    choose.backward_own(
                        alike, dout[:, :, q_heads], q[:, :, q_heads], keys[:, :, kv_heads],
                        values[:, :, kv_heads], lse[:, q_heads], delta()[:, q_heads], self.scale, grads,
                    )  # fmt: skip
            for piece in rest:
                keys, values, dkeys, dvalues, first = key_of(piece)
                rows, key_rows = _slice(piece.q), _slice(piece.k)
                for kv_heads, q_heads in self.heads.of(piece.heads, first):
                    into = (
                        dq[:, rows, q_heads], dkeys[:, key_rows, kv_heads], dvalues[:, key_rows, kv_heads],
                    )  # fmt: skip
                    choose.backward(
                        piece, into, dout[:, rows, q_heads], q[:, rows, q_heads],
                        keys[:, key_rows, kv_heads], values[:, key_rows, kv_heads], out[:, rows, q_heads],
                        lse[:, q_heads, rows], lambda: delta()[:, q_heads, rows], self.scale,
                    )  # fmt: skip

        answers, shapes = {}, {}
        for key, (_, sets) in schedule.sends.items():
            shapes[key] = self._shapes(sets, 2)

        def local():
            compute(schedule.own, lambda piece: (k, v, dk, dv, self.plan.kv_begin))

        def serve(key, came):
            peer, sets, pieces = schedule.receives[key]
            sums = [torch.zeros_like(x, dtype=torch.float32) for x in came]

            def key_of(piece):
                i = 2 * _set_of(sets, piece)
                return came[i], came[i + 1], sums[i], sums[i + 1], sets[i // 2].head_begin

            compute(pieces, key_of)
            answers[key] = (peer, [[x] for x in sums])

        handles = {}

        def absorb(key):
            if key not in handles:
                return
            handle = handles.pop(key)
            while not handle.ready():
                yield
            if key in schedule.sends:
                sets = schedule.sends[key][1]
                came = handle.wait()
                targets = self._message(sets, dk, dv)
                for x, runs in zip(came, targets):
                    at = 0
                    for target in runs:
                        target += x[:, at : at + target.shape[1]]
                        at += target.shape[1]
            handle.release()

        def after(key):
            receive = (schedule.sends[key][0], shapes[key]) if key in schedule.sends else None
            handles[key] = self.link.exchange(
                "gradients", key, answers.pop(key, None), receive, torch.float32
            )
            yield from absorb(key - 1)

        yield from self._exchanges(schedule, k, v, local, serve, after)
        yield from absorb(schedule.exchanges - 1)
        return dq, dk, dv
