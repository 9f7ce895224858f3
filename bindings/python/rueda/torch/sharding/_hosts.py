"""Who is on which host, and the collectives of one copy of the values for each host.

    host 0: ranks 0 1      share 0: rank 0   share 1: rank 2   |  share 2: rank 1   share 3: rank 3
    host 1: ranks 2 3             to the hosts' ranks 0 and 2  |         to the hosts' ranks 1 and 3

Shares that ranks of the same place on their hosts update lie side by side, so that each place gathers a part of its
host's copy in one piece.
"""

import ctypes

from rueda import _ffi
from rueda._runtime import runtime
from rueda.torch.sharding._wire import Wire


class Hosts:
    """Of a rank.

    Attributes
    ----------
    ranks : list of int
        All members, in the order of their shares.
    host : Wire
        Those on this rank's host.
    across : Wire
        Those that have its place on each host.
    """

    def __init__(self, ranks):
        everybody = Wire(ranks)
        try:
            firsts = everybody.all_of(next(r for r in ranks if r == ranks[everybody.rank] or shares_memory(r)))
        finally:
            everybody.close()
        hosts = {}
        for rank, first in zip(ranks, firsts):
            hosts.setdefault(first, []).append(rank)
        mine = hosts[firsts[everybody.rank]]
        if any(len(members) != len(mine) for members in hosts.values()):
            counts = ", ".join(f"{len(members)} with rank {members[0]}" for members in hosts.values())
            raise ValueError(
                f"share='host' needs as many ranks on each host, and there are {counts}; leave it out, or use a process set"
            )
        places = list(zip(*hosts.values()))
        self.ranks = [rank for place in places for rank in place]
        self.host = Wire(mine)
        self.across = Wire(list(places[self.host.rank]))

    def gather(self, batch):
        """Starts: the shares of a batch that other hosts have come to this host's copy."""
        begin = self.host.rank * self.across.size * batch.layout.share
        part = batch.values[begin : begin + self.across.size * batch.layout.share]
        return self.across.gather(part, batch.shard.detach())

    def close(self):
        self.host.close()
        self.across.close()


def shares_memory(rank):
    """Whether this rank sees memory of that one."""
    address, error = ctypes.c_void_p(), _ffi.Error()
    code = _ffi.library.rueda_peer_memory(
        runtime.require_context(), rank, 0, 0, ctypes.byref(address), ctypes.byref(error)
    )
    if code not in (_ffi.OK, _ffi.FAILED_PRECONDITION):
        raise _ffi.exception(code, error)
    return code == _ffi.OK
