"""Calls: of a rank of a job on its GPU tensors, and of virtual ranks in one process."""

import functools

import torch

from rueda.attention import _kept
from rueda.attention._calls import Ended
from rueda.attention._layouts import position_ids
from rueda.attention._plans import AttentionPlan, slopes_of, softcap_of
from rueda.attention.device import _program as p
from rueda.attention.device._kernels import Chosen
from rueda.attention.device._leaves import Rank
from rueda.attention.device._run import run
from rueda.attention.device._scores import scores_of

_WHOLE = 1 << 40  # tokens of a message at most: a step's rows travel in one
_on_cpu = False  # CPU tensors go this way too, for tests


def takes(tensor):
    """Whether calls on this tensor are computed here."""
    return _on_cpu or tensor.device.type == "cuda"


def options_of(options):
    """The options of a plan whose steps' rows travel at once: keys and values, unless it says otherwise. Libraries' kernels want in
    backward what queries that travel do not bring."""
    rotations = {
        name: "kv" if options.get(name) in (None, "auto") else options[name]
        for name in ("rotate_forward", "rotate_backward")
    }
    return {**options, **rotations, "chunk_tokens": options.get("chunk_tokens") or _WHOLE}


def _forward(ran, plans, save, tensors):
    """The `Rank` of each plan, whose forward pass the current stream has been given, or which has what it gave before. ``ran`` is told
    what each has sent; ``tensors``: all q, all k, all v."""
    n, first = len(plans), tensors[0]
    choose = Chosen(first, scores=scores_of(plans[0], first.device))
    ranks = [
        Rank(plan, False, dict(zip((p.Q, p.K, p.V), qkv)), choose)
        for plan, *qkv in zip(plans, tensors[:n], tensors[n : 2 * n], tensors[2 * n :])
    ]
    places = [(rank, role) for rank in ranks for role in rank.results()]

    def compute():
        for rank in ranks:
            rank.make(*rank.results())
        ran(run(ranks, first))
        return Ended(), None, *(rank.tensor(role) for rank, role in places)

    _, _, *results = _kept.once(plans[0], save, compute)
    for (rank, role), tensor in zip(places, results):
        rank.have(role, tensor)
    return ranks


def _backward(ran, plans, given, douts, dlses):
    """The same of a backward pass. ``given``: of each rank, by role; gradients may be None."""
    outs = [each[p.OUT] for each in given]
    no_out = any(plan.q_travels_backward for plan in plans)
    wants_delta = no_out or any(dlse is not None for dlse in dlses)
    choose = Chosen(outs[0], wants_delta, scores_of(plans[0], outs[0].device))
    ranks = []
    for plan, tensors, out, dout, dlse in zip(plans, given, outs, douts, dlses):
        dout = torch.zeros_like(out) if dout is None else dout.to(out.dtype).contiguous()
        rank = Rank(plan, True, {**tensors, p.DOUT: dout, p.DLSE: dlse}, choose)
        rank.make(p.DQ, p.DK, p.DV)
        ranks.append(rank)
    ran(run(ranks, outs[0]))
    return ranks


class _Attention(torch.autograd.Function):
    """q, k, v of each plan's rank -> out of each, lse of each. ``ran`` is told what each rank has sent."""

    @staticmethod
    def forward(ctx, ran, plans, save, *tensors):
        tensors = [x.detach() for x in tensors]
        ranks = _forward(ran, plans, save, tensors)
        # What backward is given: of whole heads those that were exchanged, in place of the caller's.
        saved = [rank.for_backward() for rank in ranks]
        ctx.ran, ctx.plans, ctx.roles = ran, plans, save != "qkv" and [list(each) for each in saved]
        ctx.save_for_backward(*(x for each in saved for x in each.values()) if ctx.roles else tensors)
        ctx.set_materialize_grads(False)
        return *(rank.tensor(p.OUT) for rank in ranks), *(rank.tensor(p.LSE) for rank in ranks)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        n, tensors = len(ctx.plans), ctx.saved_tensors
        if ctx.roles:
            tensors = iter(tensors)
            given = [{role: next(tensors) for role in roles} for roles in ctx.roles]
        else:
            given = [rank.for_backward() for rank in _forward(ctx.ran, ctx.plans, None, tensors)]
        ranks = _backward(ctx.ran, ctx.plans, given, grads[:n], grads[n:])
        return None, None, None, *(rank.tensor(role) for role in (p.DQ, p.DK, p.DV) for rank in ranks)


def _nobody(sent):
    """Whom the bytes of a job's rank are told: transports count them."""


@functools.lru_cache(maxsize=64)
def _plans(spec):
    """Of all ranks, without a job. ``spec``: fields as pairs, with ``ranks``."""
    fields = dict(spec)
    return [AttentionPlan(rank=rank, **fields) for rank in range(fields["ranks"])]


def attend(plan, save, q, k, v):
    """(out, lse) of this rank of the plan's process set, whose ranks all call it."""
    return _Attention.apply(_nobody, [plan], save, q, k, v)


def forward(plan, save, q, k, v):
    """For a graph, whose tensors have no gradients of their own: (out, lse, what `backward` is given beside these and q, k, v)."""
    (rank,) = _forward(_nobody, [plan], save, [q, k, v])
    return rank.tensor(p.OUT), rank.tensor(p.LSE), {role: rank.tensor(role) for role in rank.kept()}


def backward(plan, kept, tensors, dout, dlse):
    """(dq, dk, dv). ``tensors``: q, k, v, and out and lse or, where ``kept`` is None, these are computed again. ``dout`` and ``dlse``
    may be None; where ``dlse`` is, libraries' kernels can be used."""
    if kept is None:
        (rank,) = _forward(_nobody, [plan], None, tensors)
        given = rank.for_backward()
    else:
        given = {**kept, **dict(zip((p.Q, p.K, p.V, p.OUT, p.LSE), tensors))}
    (rank,) = _backward(_nobody, [plan], [given], [dout], [dlse])
    return [rank.tensor(role) for role in (p.DQ, p.DK, p.DV)]


class VirtualRing:
    """``ranks`` ranks in one process, on one device: a ring whose messages are copies on a stream of their own.

    For one GPU: what a job of that many GPUs computes, step by step, and what it costs beside the messages. Tensors
    are lists of shards, one for each rank, as the ranks of a job have them.

        ring = ra.VirtualRing(8)
        q, k, v = (ring.shard(x, layout="zigzag") for x in (q, k, v))
        whole = ring.unshard(ring.attention(q, k, v, causal=True, layout="zigzag"), layout="zigzag")

    Works on CPU tensors as well. ``bytes_sent`` has, for each rank, what the last pass has moved.
    """

    def __init__(self, ranks):
        if ranks < 1:
            raise ValueError(f"{ranks} ranks: a ring has one at least")
        self.ranks, self.bytes_sent = ranks, [0] * ranks

    def _places(self, length, layout, cu_seqlens):
        return [
            torch.from_numpy(position_ids(length, layout, rank, self.ranks, cu_seqlens=cu_seqlens))
            for rank in range(self.ranks)
        ]

    def shard(self, full, *, layout="contiguous", axis=1, cu_seqlens=None):
        """The tokens of each rank. ``cu_seqlens``: of packed sequences that are spread each by itself."""
        places = self._places(full.shape[axis], layout, cu_seqlens)
        return [full.index_select(axis, place.to(full.device)) for place in places]

    def unshard(self, shards, *, layout="contiguous", axis=1, cu_seqlens=None):
        """The whole, from the shards of all ranks."""
        places = self._places(sum(x.shape[axis] for x in shards), layout, cu_seqlens)
        order = torch.argsort(torch.cat(places)).to(shards[0].device)
        return torch.cat(shards, axis).index_select(axis, order)

    def attention(self, q, k, v, *, return_lse=False, window_size=(-1, -1), softmax_scale=None,
                  compression=None, block_mask=None, ulysses_degree=1, softcap=0.0, alibi_slopes=None,
                  save=None, **options):  # fmt: skip
        """The outputs of all ranks (and log-sum-exps), from lists of q, k, v; differentiable.

        Options: ``causal``, ``layout``, ``rotate_forward``, ``rotate_backward``, ``gather_first``, ``chunk_tokens``, ``cu_seqlens``, ``cu_seqlens_k``,
        ``per_sequence``, ``save``, ``segment_lengths``, ``dilation_rates``, ``head_offset``, ``split_heads``; those of
        the functions of `rueda.attention` that have them.
        """
        if not len(q) == len(k) == len(v) == self.ranks:
            raise ValueError(f"lists of {len(q)}, {len(k)} and {len(v)} shards for {self.ranks} ranks")
        if block_mask is not None:
            options.update(block=block_mask.block, block_heads=block_mask.heads, blocks=block_mask.bytes)
        batch, _, heads, head_dim = q[0].shape
        length, keys = (sum(x.shape[1] for x in shards) for shards in (q, k))
        spec = options_of(
            {
                "batch": batch, "length": length, "heads": heads, "kv_heads": k[0].shape[2],
                "head_dim": head_dim, "dtype": str(q[0].dtype).replace("torch.", ""), "ranks": self.ranks,
                "window": tuple(window_size), "scale": softmax_scale or 0.0, "kv_wire": compression,
                "ulysses": ulysses_degree, "key_length": 0 if keys == length else keys,
                "softcap": softcap_of(softcap), "alibi_slopes": slopes_of(alibi_slopes, batch, heads), **options,
            }
        )  # fmt: skip
        plans = _plans(tuple(sorted(spec.items())))
        for rank, plan in enumerate(plans):
            if (plan.tokens, plan.keys) != (q[rank].shape[1], k[rank].shape[1]):
                raise ValueError(
                    f"rank {rank} has {q[rank].shape[1]} queries and {k[rank].shape[1]} keys, its layout gives it "
                    f"{plan.tokens} and {plan.keys}; use shard with the same layout"
                )
        results = _Attention.apply(self._ran, plans, save, *q, *k, *v)
        outs, lses = list(results[: self.ranks]), list(results[self.ranks :])
        return (outs, lses) if return_lse else outs

    def _ran(self, sent):
        self.bytes_sent = sent
