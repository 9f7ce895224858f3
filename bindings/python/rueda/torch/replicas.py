"""Whether the ranks still have the same tensors, and if not, which tensor and which rank.

Each tensor is reduced to a checksum of its bytes, and the checksums are gathered: 8 bytes per
tensor travel, whatever its size. Any single changed bit changes a CRC.
"""

import collections
import zlib

import torch

from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.torch._tensors import blocking
from rueda.torch.sharding._whole import is_away


class ReplicasDiffer(RuntimeError):
    """Ranks have different values where they should have the same.

    Attributes
    ----------
    name : str
        The first tensor that differs.
    ranks : list of int
        The ranks whose value of it is not the one that most ranks have.
    """

    def __init__(self, message, name=None, ranks=()):
        super().__init__(message)
        self.name, self.ranks = name, list(ranks)


def check_replicas(state, process_set=global_process_set):
    """Raises `ReplicasDiffer`, on all ranks, unless they hold the same bits.

    Parameters
    ----------
    state : torch.nn.Module, torch.optim.Optimizer, dict or list
        A module: its parameters (not its buffers: statistics of plain batch normalization differ; and not
        what is sharded and not gathered).
        An optimizer: its parameters and the tensors of its state. Otherwise tensors by name, as
        ``model.state_dict()`` or a list of (name, tensor) pairs.
    """
    named = list(_named_tensors(state))
    mine = torch.tensor([_checksum(name, tensor) for name, tensor in named], dtype=torch.int64)
    size = process_set.size()
    counts = _gather(torch.tensor([len(named)]), "replicas.count", process_set).tolist()
    if len(set(counts)) > 1:
        raise ReplicasDiffer(f"replicas differ: the ranks have {counts} tensors")
    everyone = _gather(mine, "replicas.sums", process_set).reshape(size, len(named))
    members = process_set.ranks
    different = []
    for (name, _), sums in zip(named, everyone.t().tolist()):
        if len(set(sums)) > 1:
            usual = collections.Counter(sums).most_common(1)[0][0]  # of equals, the first rank's
            different.append((name, [members[i] for i, s in enumerate(sums) if s != usual], sums))
    if different:
        name, ranks, sums = different[0]
        more = f"; {len(different) - 1} later tensors differ too" if different[1:] else ""
        agree = [rank for rank in members if rank not in ranks]
        raise ReplicasDiffer(
            f"replicas differ: {name!r} on {_ranks(ranks)} is not what {_ranks(agree)} "
            f"{'has' if len(agree) == 1 else 'have'}{more}. This is rank {basics.rank()} of "
            f"{basics.size()}.",
            name,
            ranks,
        )


def _ranks(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _gather(tensor, name, process_set):
    return blocking.allgather(tensor, name, process_set)


def _named_tensors(state):
    if isinstance(state, torch.nn.Module):
        yield from ((name, p) for name, p in state.named_parameters() if not is_away(p))
    elif isinstance(state, torch.optim.Optimizer):
        names = getattr(state, "_parameter_names", {})
        for i, group in enumerate(state.param_groups):
            for j, p in enumerate(group["params"]):
                name = names.get(p, f"{i}.{j}")
                yield name, p
                for key, value in sorted(state.state.get(p, {}).items()):
                    if isinstance(value, torch.Tensor):
                        yield f"{name} ({key})", value
    else:
        pairs = state.items() if isinstance(state, dict) else state
        for name, value in pairs:
            if isinstance(value, torch.Tensor):
                yield name, value


def _checksum(name, tensor):
    form = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
    whole = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    dense = whole.resolve_conj().resolve_neg().cpu().contiguous()
    data = dense.reshape(-1).view(torch.uint8).numpy() if dense.numel() else b""
    return zlib.crc32(data) << 31 ^ zlib.crc32(form)  # below 2**63
