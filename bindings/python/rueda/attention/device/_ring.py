"""Calls: of a rank of a job on its GPU tensors, and of virtual ranks in one process."""

import functools

import torch

from rueda.attention._layouts import position_ids
from rueda.attention._plans import AttentionPlan
from rueda.attention.device._executor import Rank
from rueda.attention.device._kernels import Chosen
from rueda.attention.device._transport import SetLink, Streams, VirtualWorld

_WHOLE = 1 << 40  # tokens of a message at most: a step's rows travel in one
_on_cpu = False  # CPU tensors go this way too, for tests


def takes(tensor):
    """Whether calls on this tensor are computed here."""
    return _on_cpu or tensor.device.type == "cuda"


def options_of(options):
    """The options of a plan whose keys and values travel, a step's rows at once."""
    if "q" in (options.get("rotate_forward"), options.get("rotate_backward")):
        raise ValueError("rotate='q': on GPUs keys and values travel; leave rotate out")
    if options.get("kv_wire") == "int8":
        raise ValueError("compression='int8' is not there for GPU tensors; 'bfloat16' is")
    if options.get("softcap") or options.get("alibi_slopes"):
        raise ValueError("softcap and alibi_slopes are not there for GPU tensors: their libraries' kernels are called without")
    return {
        **options,
        "rotate_forward": "kv",
        "rotate_backward": "kv",
        "chunk_tokens": options.get("chunk_tokens") or _WHOLE,
    }


class _Attention(torch.autograd.Function):
    """q, k, v of each plan's rank -> out of each, lse of each. ``run`` runs generators, one for each plan."""

    @staticmethod
    def forward(ctx, run, plans, *tensors):
        n = len(plans)
        tensors = [x.detach() for x in tensors]
        qkv = list(zip(tensors[:n], tensors[n : 2 * n], tensors[2 * n :]))
        choose = Chosen(tensors[0])
        results = run(
            [
                lambda link, plan=plan, x=x: Rank(plan, link).forward(*x, choose)
                for plan, x in zip(plans, qkv)
            ]
        )
        outs, lses, ctx.lows = zip(*results)
        ctx.run, ctx.plans = run, plans
        ctx.save_for_backward(*tensors, *outs, *lses)
        ctx.set_materialize_grads(False)
        return (*outs, *lses)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        n, saved = len(ctx.plans), ctx.saved_tensors
        q, k, v, outs, lses = (saved[i * n : (i + 1) * n] for i in range(5))
        douts = [
            torch.zeros_like(out) if dout is None else dout.to(out.dtype).contiguous()
            for dout, out in zip(grads[:n], outs)
        ]
        dlses = grads[n:]
        choose = Chosen(q[0], any(dlse is not None for dlse in dlses))
        results = ctx.run(
            [
                lambda link, plan=plan, x=x: Rank(plan, link).backward(*x, choose)
                for plan, x in zip(
                    ctx.plans, [*zip(douts, dlses, q, k, v, outs, lses, ctx.lows)]
                )
            ]
        )
        return None, None, *(
            grad.to(x.dtype) for each, own in zip(zip(*results), (q, k, v)) for grad, x in zip(each, own)
        )


@functools.lru_cache(maxsize=64)
def _plans(spec):
    """Of all ranks, without a job. ``spec``: fields as pairs, with ``ranks``."""
    fields = dict(spec)
    return [AttentionPlan(rank=rank, **fields) for rank in range(fields["ranks"])]


def _one(link, calls):
    """Runs the only rank of this process."""
    return [link.run(call(link)) for call in calls]


def _to_heads(x, shares, tokens, process_set):
    """(batch, own tokens, all heads, width) -> (batch, all tokens, own heads, width); differentiable."""
    from rueda import torch as hvd

    batch, _, _, width = x.shape
    parts = [x[:, :, begin:end].reshape(-1, width) for begin, end in shares]
    received, _ = hvd.alltoall(torch.cat(parts), [len(p) for p in parts], process_set=process_set)
    begin, end = shares[process_set.rank()]
    parts = received.split([batch * count * (end - begin) for count in tokens])
    return torch.cat(
        [part.reshape(batch, count, end - begin, width) for part, count in zip(parts, tokens)], 1
    )


def _to_tokens(x, shares, tokens, process_set):
    """Back again."""
    from rueda import torch as hvd

    batch, _, _, width = x.shape
    parts = [part.reshape(-1, width) for part in x.split(tokens, 1)]
    received, _ = hvd.alltoall(torch.cat(parts), [len(p) for p in parts], process_set=process_set)
    own = tokens[process_set.rank()]
    counts = [batch * own * (end - begin) for begin, end in shares]
    parts = received.split(counts)
    return torch.cat(
        [part.reshape(batch, own, end - begin, width) for part, (begin, end) in zip(parts, shares)], 2
    )


def attend(plan, q, k, v, process_set):
    """(out, lse) of this rank of a process set, whose ranks all call it."""
    places, ranks = plan.spec.ulysses, process_set.size()
    link = SetLink(process_set, q.device, plan.spec.head_dim)
    run = functools.partial(_one, link)
    if places == 1:
        return _Attention.apply(run, [plan], q, k, v)
    if places != ranks:
        raise ValueError(
            f"usp_attention of GPU tensors: ulysses_degree is {places}, give 1 (a ring) or all {ranks} ranks"
        )
    plans = _plans(tuple(sorted({**plan.spec._asdict(), "ranks": ranks}.items())))
    tokens, keys = [p.tokens for p in plans], [p.keys for p in plans]
    shares = [(p.q_begin, p.q_end) for p in plans]
    kv_shares = [(p.kv_begin, p.kv_end) for p in plans]
    q = _to_heads(q, shares, tokens, process_set)
    k, v = (_to_heads(x, kv_shares, keys, process_set) for x in (k, v))
    out, lse = _Attention.apply(run, [plan], q, k, v)
    lse = _to_tokens(lse.transpose(1, 2).unsqueeze(-1), shares, tokens, process_set)
    return _to_tokens(out, shares, tokens, process_set), lse.squeeze(-1).transpose(1, 2)


def _group(plans, rank):
    """(first rank of the group that exchanges heads, plans of its places)."""
    places = plans[0].spec.ulysses
    first = rank // places * places
    return first, plans[first : first + places]


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
        self.ranks, self.bytes_sent, self._streams = ranks, [0] * ranks, None

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
                  compression=None, block_mask=None, ulysses_degree=1, **options):  # fmt: skip
        """The outputs of all ranks (and log-sum-exps), from lists of q, k, v; differentiable.

        Options: ``causal``, ``layout``, ``gather_first``, ``chunk_tokens``, ``cu_seqlens``, ``cu_seqlens_k``,
        ``per_sequence``, ``segment_lengths``, ``dilation_rates``, ``head_offset``, ``split_heads``; those of
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
                "ulysses": ulysses_degree, "key_length": 0 if keys == length else keys, **options,
            }
        )  # fmt: skip
        plans = _plans(tuple(sorted(spec.items())))
        for rank, plan in enumerate(plans):
            if (plan.tokens, plan.keys) != (q[rank].shape[1], k[rank].shape[1]):
                raise ValueError(
                    f"rank {rank} has {q[rank].shape[1]} queries and {k[rank].shape[1]} keys, its layout gives it "
                    f"{plan.tokens} and {plan.keys}; use shard with the same layout"
                )
        if ulysses_degree > 1:
            q, k, v = (self._exchange(plans, x, side) for x, side in ((q, "q"), (k, "kv"), (v, "kv")))
        exchanges = max(1, plans[0].exchanges_forward)
        run = functools.partial(self._run, q[0].device, exchanges if spec.get("gather_first") else 2)
        results = _Attention.apply(run, plans, *q, *k, *v)
        outs, lses = list(results[: self.ranks]), list(results[self.ranks :])
        if ulysses_degree > 1:
            outs = self._exchange_back(plans, outs, 1, 2)
            lses = self._exchange_back(plans, lses, 2, 1)
        return (outs, lses) if return_lse else outs

    def _run(self, device, slots, calls):
        if self._streams is None and device.type == "cuda":
            self._streams = Streams(device)
        world = VirtualWorld(self.ranks, device, self._streams)
        links = [world.link(rank, slots) for rank in range(self.ranks)]
        results = world.run([call(link) for call, link in zip(calls, links)])
        self.bytes_sent = world.bytes
        return results

    def _exchange(self, plans, shards, side):
        result = []
        for rank, plan in enumerate(plans):
            first, group = _group(plans, rank)
            heads = slice(getattr(plan, f"{side}_begin"), getattr(plan, f"{side}_end"))
            result.append(torch.cat([shards[first + u][:, :, heads] for u in range(len(group))], 1))
        return result

    def _exchange_back(self, plans, parts, rows_axis, heads_axis):
        result = []
        for rank, plan in enumerate(plans):
            first, group = _group(plans, rank)
            before = sum(other.tokens for other in group[: rank - first])
            own = [
                parts[first + u].narrow(rows_axis, before, plan.tokens) for u in range(len(group))
            ]
            result.append(torch.cat(own, heads_axis))
        return result
