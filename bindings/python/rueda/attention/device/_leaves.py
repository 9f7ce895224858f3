"""The work of a program's instructions on tensors: which kernel takes a piece, and the call.

Rows of head_dim elements are (batch, rows, heads, head_dim), numbers of a row and head (batch, heads, rows). Everything is given to
the current stream; nothing waits.
"""

import math

import torch

from rueda.attention.device import _partial, _wire
from rueda.attention.device import _program as p
from rueda.attention.device._heads import Heads
from rueda.attention.device._scores import of_heads, scores_of

_THIN = {p.LSE, p.DLSE, p.LSE_ROWS, p.OWN_DELTA, p.GROUP_LSE, p.GROUP_DELTA, p.LSE_LOW, p.SUM_WEIGHTS}
_OWN_QUERIES = {p.Q, p.OUT, p.DOUT, p.DQ, p.LSE, p.DLSE, p.LSE_ROWS, p.OWN_DELTA}
_OWN_KEYS = {p.K, p.V, p.DK, p.DV, p.OWN_SUM_DK, p.OWN_SUM_DV}
_GROUP_KEYS = {p.GROUP_K, p.GROUP_V, p.GROUP_DK, p.GROUP_DV, p.SUM_DK, p.SUM_DV}
_SUMS = {p.SUM_OUT, p.SUM_DQ, p.SUM_DK, p.SUM_DV, p.OWN_SUM_DK, p.OWN_SUM_DV}


def _slice(rows):
    return slice(rows.begin, rows.begin + (rows.count - 1) * rows.step + 1, rows.step)


class Rank:
    """One rank's pass. ``tensors``: by role, what the program is given, gives and keeps; ``choose``: `Chosen` kernels."""

    def __init__(self, plan, backward, tensors, choose):
        self.plan, self.program, self.choose = plan, p.program_of(plan, backward), choose
        self.heads, self.dtype = Heads(plan), getattr(torch, plan.spec.dtype)
        self.scale = plan.spec.scale or plan.spec.head_dim**-0.5
        wire = plan.spec.kv_wire or plan.spec.dtype
        self.wire = getattr(torch, wire)
        self.q_travels = bool(plan.q_travels_backward if backward else plan.q_travels_forward)
        self.grouped = plan.spec.ulysses > 1
        self.scores = scores_of(plan, next(x.device for x in tensors.values() if x is not None))
        self._given, self._slots, self._views, self._folded = tensors, {}, {}, {}
        self._fresh = set()  # roles of sums that are nothing yet: zeros as soon as somebody reads them

        def sums(apart, role):
            return apart if self.program.has(apart) else role

        def at(grouped, own):
            return grouped if self.grouped else own

        self.q, self.k, self.v = at(p.GROUP_Q, p.Q), at(p.GROUP_K, p.K), at(p.GROUP_V, p.V)
        self.out, self.lse = at(p.GROUP_OUT, p.OUT), at(p.GROUP_LSE, p.LSE_ROWS)
        self.dout, self.delta = at(p.GROUP_DOUT, p.DOUT), at(p.GROUP_DELTA, p.OWN_DELTA)
        self.dq, self.dk, self.dv = at(p.GROUP_DQ, p.DQ), at(p.GROUP_DK, p.DK), at(p.GROUP_DV, p.DV)
        self.acc = sums(p.SUM_OUT, self.out)
        self.sums = sums(p.SUM_DQ, self.dq), sums(p.SUM_DK, self.dk), sums(p.SUM_DV, self.dv)

    # ---- the caller's tensors

    def make(self, *roles):
        """New tensors for what the program gives."""
        device = next(x.device for x in self._given.values() if x is not None)
        for role in roles:
            self._given[role] = torch.empty(self.shape_of(role), dtype=self.dtype_of(role), device=device)

    def have(self, role, tensor):
        """What the program would give, or has given."""
        self._given[role] = tensor

    def kept(self):
        """Roles of what a forward keeps for its backward beside its inputs and results."""
        return [buffer.role for buffer in self.program.buffers if buffer.home == p.SAVED]

    def results(self):
        """Roles of what a forward gives and keeps for its backward."""
        return [p.OUT, p.LSE, *self.kept()]

    def for_backward(self):
        """What backward is given of a forward, by role."""
        inputs = (p.OUT,) if self.grouped else (p.Q, p.K, p.V, p.OUT, p.LSE)
        return {role: self._given[role] for role in (*inputs, *self.kept())}

    # ---- memory

    def take(self, slot, size):
        """Memory of a slot: its address."""
        device = next(x.device for x in self._given.values() if x is not None)
        self._slots[slot] = torch.empty(max(size, 8), dtype=torch.uint8, device=device)
        return self._slots[slot].data_ptr()

    def give(self, slot):
        """Takes it back, behind what the current stream has been given."""
        del self._slots[slot]
        for role in [r for r in self._views if self._buffer(r).slot == slot]:
            del self._views[role]

    def held(self):
        """What is taken now."""
        return list(self._slots.values())

    def _buffer(self, role):
        return self.program.buffers[self.program.found[role]]

    def shape_of(self, role):
        """Of a tensor with that role."""
        plan, spec = self.plan, self.plan.spec
        if role in _OWN_KEYS:
            rows, heads = plan.keys, spec.kv_heads
        elif role in _GROUP_KEYS:
            rows, heads = plan.group_keys, plan.kv_end - plan.kv_begin
        elif role in _OWN_QUERIES:
            rows, heads = plan.tokens, spec.heads
        else:
            rows, heads = plan.group_tokens, plan.q_end - plan.q_begin
        return (spec.batch, heads, rows) if role in _THIN else (spec.batch, rows, heads, spec.head_dim)

    def dtype_of(self, role):
        if role in _THIN or role in _SUMS:
            return torch.float32
        if role in (p.GROUP_DK, p.GROUP_DV):  # gradients that several ranks add are float32
            wide = self._buffer(role).bytes == 4 * math.prod(self.shape_of(role))
            return torch.float32 if wide else self.dtype
        return self.dtype

    def tensor(self, role):
        """Of the caller's, or of a slot."""
        view = self._sum(role)
        if role in self._fresh:
            self._fresh.discard(role)
            view.zero_()
        return view

    def _sum(self, role):
        """A tensor whose elements may be anything yet, where it is fresh."""
        view = self._views.get(role)
        if view is None:
            buffer = self._buffer(role)
            if buffer.home != p.SLOT:
                return self._given.get(role)
            shape, dtype = self.shape_of(role), self.dtype_of(role)
            size = math.prod(shape) * dtype.itemsize
            view = self._views[role] = self._slots[buffer.slot][:size].view(dtype).view(shape)
        return view

    def _message(self, number):
        buffer = self.program.buffers[number]
        return self._slots[buffer.slot][: buffer.bytes]

    def _in_message(self, message, part):
        """A part as a tensor, its dtype that of the wire."""
        batch, width = self.plan.spec.batch, self.plan.spec.head_dim
        thin = part.role in _THIN
        shape = (batch, part.heads, part.rows) if thin else (batch, part.rows, part.heads, width)
        dtype = self.dtype_of(part.role)
        if part.set >= 0 and not part.add and part.role in (self.k, self.v):
            dtype = self.wire
        elif part.add:
            dtype = torch.float32
        return message[part.offset : part.offset + part.bytes].view(dtype).view(shape)

    def _scales(self, message, part):
        shape = self.plan.spec.batch, part.rows, part.heads
        size = 4 * math.prod(shape)
        return message[part.scales : part.scales + size].view(torch.float32).view(shape)

    @staticmethod
    def _runs(tensor, view, part):
        """(rows of the tensor, the same of the part), run by run."""
        heads, at = slice(part.head, part.head + part.heads), 0
        for run in part.runs:
            if part.role in _THIN:
                yield tensor[:, heads, _slice(run)], view[:, :, at : at + run.count]
            else:
                yield tensor[:, _slice(run), heads], view[:, at : at + run.count]
            at += run.count

    # ---- instructions

    def perform(self, number):
        """The work of an instruction."""
        step = self.program.steps[number]
        self._WORK[step.op](self, step)

    def _transpose(self, step):
        if step.last:
            self.tensor(p.LSE).copy_(self.tensor(p.LSE_ROWS))
        else:
            self.tensor(p.LSE_ROWS).copy_(self.tensor(p.LSE))

    def _make_delta(self, step):
        # Only some kernels ask for it; other ranks' may.
        asked = self.choose.main.takes_delta or self.program.has_bands or self.scores.slopes is not None
        if not (asked or self.grouped or self.q_travels):
            return
        delta = (self.tensor(p.DOUT).float() * self.tensor(p.OUT).float()).sum(-1).transpose(1, 2)
        dlse = self._given.get(p.DLSE)
        self.tensor(p.OWN_DELTA).copy_(delta if dlse is None else delta - dlse)

    def _clear(self, step):
        if self.program.backward:
            self._fresh.update(self.sums)
            return
        self._fresh.add(self.acc)
        self.tensor(self.lse).fill_(-torch.inf)
        self.tensor(p.SUM_WEIGHTS).zero_()

    def _pack(self, step):
        message = self._message(step.message)
        for part in step.parts:
            tensor = self._operand(part.role) if part.set >= 0 else self.tensor(part.role)
            view = self._in_message(message, part)
            if part.scales < 0:
                for rows, target in self._runs(tensor, view, part):
                    target.copy_(rows)
                continue
            scales, at = self._scales(message, part), 0
            for rows, target in self._runs(tensor, view, part):
                _wire.quantise(rows, target, scales[:, at : at + rows.shape[1]])
                at += rows.shape[1]

    def _unpack(self, step):
        message = self._message(step.message)
        for part in step.parts:
            for rows, view in self._runs(self.tensor(part.role), self._in_message(message, part), part):
                if part.add:
                    rows.add_(view)
                else:
                    rows.copy_(view)

    def _merge(self, step):
        parts = [(part, self._in_message(self._message(step.message), part)) for part in step.parts]
        if self.program.backward:
            for part, view in parts:
                for rows, more in self._runs(self.tensor(part.role), view, part):
                    rows.add_(more)
            return
        for index in {part.set for part, _ in parts}:
            found = {part.role: [*self._runs(self.tensor(part.role), view, part)] for part, view in parts if part.set == index}
            for three in zip(found[self.acc], found[self.lse], found[p.SUM_WEIGHTS]):
                _partial.add([rows for rows, _ in three], [more for _, more in three])

    def _finish(self, step):
        if self.program.backward:
            for into, role in zip((self.dq, self.dk, self.dv), self.sums):
                found = self.tensor(role)
                if into != role:
                    self.tensor(into).copy_(found)
            return
        low = self.tensor(p.LSE_LOW) if self.program.has(p.LSE_LOW) else None
        self.choose.finish(
            self.tensor(self.acc), self.tensor(self.lse), self.tensor(p.SUM_WEIGHTS), self.tensor(self.out), low
        )

    def _sum_heads(self, step):
        for apart, result in ((p.OWN_SUM_DK, p.DK), (p.OWN_SUM_DV, p.DV)):
            if step.last:
                self.tensor(result).copy_(self.tensor(apart))
            else:
                self.tensor(apart if self.program.has(apart) else result).zero_()

    # ---- attention

    def _operand(self, role):
        """A tensor of the ring. exp(s - lse - low) = exp(s - lse) * exp(-low): what follows from it has the factor instead."""
        folds = self.program.backward and self._given.get(p.LSE_LOW) is not None
        if not folds or role not in (self.dout, self.delta):
            return self.tensor(role)
        if role not in self._folded:
            fold = torch.exp(-self._given[p.LSE_LOW])
            wide = fold if role == self.delta else fold.transpose(1, 2).unsqueeze(-1)
            self._folded[role] = (self.tensor(role) * wide).to(self.dtype_of(role))
        return self._folded[role]

    def _sides(self, step):
        """What came and what goes back, by set and role; and of each set the first head."""
        came, back, first = {}, {}, {}
        if step.came:
            message = self._message(step.message)
            for part in step.parts:
                came[part.set, part.role] = self._in_message(message, part)
                first[part.set] = part.head
        if step.reply >= 0:
            reply = self._message(step.reply)
            reply.zero_()
            for part in step.replies:
                back[part.set, part.role] = self._in_message(reply, part)
                if not self.program.backward and part.role == self.lse:
                    back[part.set, part.role].fill_(-torch.inf)
        if step.came and not self.q_travels and self.wire != self.dtype:
            self._widen(step, came)
        return came, back, first

    def _widen(self, step, came):
        """Keys and values in the dtype that kernels compute with."""
        at = 0
        for part in step.parts:
            view = came[part.set, part.role]
            if part.scales < 0:
                came[part.set, part.role] = view.to(self.dtype)
                continue
            memory = self._slots[self._buffer(p.WIDENED).slot].view(self.dtype)
            into = memory[at : at + view.numel()].view(view.shape)
            at += view.numel()
            _wire.dequantise(view, self._scales(self._message(step.message), part), into)
            came[part.set, part.role] = into

    def _attend(self, step):
        came, back, first = self._sides(step)
        if self.program.backward:
            q_roles, k_roles = (self.q, self.dout, self.lse, self.delta), (self.k, self.v)
            q_sums, k_sums = self.sums[:1], self.sums[1:]
            compute = self._backward
        else:
            q_roles, k_roles = (self.q,), (self.k, self.v)
            q_sums, k_sums = (self.acc, self.lse, p.SUM_WEIGHTS), ()
            compute = self._forward

        def side(roles, sums, travels, index):
            """(inputs, sums, number of the first head) of queries or keys."""
            if index < 0 or not travels:
                return [self._operand(r) for r in roles], [self._sum(r) for r in sums], 0
            return [came[index, r] for r in roles], [back[index, r] for r in sums], first[index]

        own, rest = self.choose.split(step.pieces)
        calls = [(pieces, True) for pieces in _alike(own)] + [((piece,), False) for piece in rest]
        for pieces, is_own in calls:
            index = pieces[0].set
            queries = side(q_roles, q_sums, self.q_travels, index)
            keys = side(k_roles, k_sums, not self.q_travels, index)
            heads = self.heads.of(pieces[0].heads, self.plan.kv_begin + keys[2], queries[2])
            for kv_heads, q_heads in heads:
                compute(pieces, is_own, queries, keys, kv_heads, q_heads)

    def _scores(self, heads, first):
        """Of heads of queries that are the rank's from ``first`` on."""
        return of_heads(self.scores, slice(heads.start + first, heads.stop + first, heads.step))

    def _forward(self, pieces, own, q_side, k_side, kv_heads, q_heads):
        (q,), (acc, m, weights), _ = q_side
        (k, v), _, _ = k_side
        scores = self._scores(q_heads, q_side[2])
        if own:
            self._begins(self.acc, acc)
            into = acc[:, :, q_heads], m[:, q_heads], weights[:, q_heads]
            self.choose.forward_own(
                pieces, into, q[:, :, q_heads], k[:, :, kv_heads], v[:, :, kv_heads], self.scale, scores
            )
            return
        rows, columns = _slice(pieces[0].q), _slice(pieces[0].k)
        into = acc[:, rows, q_heads], m[:, q_heads, rows], weights[:, q_heads, rows]
        fresh = self._begins(self.acc, acc, into[0])
        self.choose.forward(
            pieces[0], into, q[:, rows, q_heads], k[:, columns, kv_heads], v[:, columns, kv_heads],
            self.scale, scores, fresh,
        )  # fmt: skip

    def _backward(self, pieces, own, q_side, k_side, kv_heads, q_heads):
        (q, dout, lse, delta), (dq,), _ = q_side
        (k, v), (dk, dv), _ = k_side
        scores = self._scores(q_heads, q_side[2])
        sums = list(zip(self.sums, (dq, dk, dv)))
        if own:
            for role, whole in sums:
                self._begins(role, whole)
            grads = dq[:, :, q_heads], dk[:, :, kv_heads], dv[:, :, kv_heads]
            self.choose.backward_own(
                pieces, dout[:, :, q_heads], q[:, :, q_heads], k[:, :, kv_heads], v[:, :, kv_heads],
                lse[:, q_heads], delta[:, q_heads], self.scale, grads, scores,
            )  # fmt: skip
            return
        rows, columns = _slice(pieces[0].q), _slice(pieces[0].k)
        grads = dq[:, rows, q_heads], dk[:, columns, kv_heads], dv[:, columns, kv_heads]
        fresh = [self._begins(role, whole, part) for (role, whole), part in zip(sums, grads)]
        # Queries that came have no out: where they travel no kernel is chosen that wants it.
        out = None if self.q_travels else self.tensor(self.out)[:, rows, q_heads]
        self.choose.backward(
            pieces[0], grads, dout[:, rows, q_heads], q[:, rows, q_heads], k[:, columns, kv_heads],
            v[:, columns, kv_heads], out, lse[:, q_heads, rows], delta[:, q_heads, rows], self.scale, scores, fresh,
        )  # fmt: skip

    def _begins(self, role, whole, part=None):
        """Whether a part is the first and all of a sum, so that it can be written there; zeros where it is the first and not all."""
        if role not in self._fresh or whole is not self._sum(role):
            return False
        self._fresh.discard(role)
        if part is not None and part.shape == whole.shape:
            return True
        whole.zero_()
        return False

    _WORK = {
        p.TRANSPOSE: _transpose, p.DELTA: _make_delta, p.CLEAR: _clear, p.PACK: _pack, p.UNPACK: _unpack,
        p.ATTEND: _attend, p.MERGE: _merge, p.FINISH: _finish, p.SUM_HEADS: _sum_heads,
    }  # fmt: skip


def _alike(pieces):
    """Pieces of the same heads and rows of the same tensors, together: tuples."""
    groups = {}
    for piece in pieces:
        groups.setdefault((piece.heads, piece.set), []).append(piece)
    return [tuple(group) for group in groups.values()]
