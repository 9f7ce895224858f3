"""What `import torch` calls (entry point group ``torch.backends``): it learns the name "rueda".

Nothing of the package `rueda` is imported here, nor the library loaded: that is for the first
``init_process_group("rueda")``. A failure here is a warning and never breaks ``import torch``.
"""

import os
import sys
import warnings
from urllib.parse import parse_qs, urlparse


def register():
    """Makes ``torch.distributed`` know the backend; again, it does nothing."""
    try:
        import torch.distributed as dist

        if dist.is_available() and "RUEDA" not in dist.Backend._plugins:
            _register(dist)
    except Exception as error:
        warnings.warn(f"torch.distributed does not know the backend rueda: {error!r}", stacklevel=2)


def _register(dist):
    dist.Backend.register_backend("rueda", _create, extended_api=True, devices=["cpu", "cuda"])
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["env"] = _meet_in_environment(handlers["env"])
    if os.environ.get("RUEDA_C10D", "0") not in ("", "0"):
        _stand_in_for_gloo(sys.modules["torch.distributed.distributed_c10d"])


def _create(options, backend_options):
    from rueda.torch.distributed._start import create

    return create(options, backend_options)


def _meet_in_environment(meet_at_port):
    """PyTorch's handler of ``env://``; for the ranks of a job of ruedarun one that opens no port."""

    def meet(url, **kwargs):
        place = _place_in_job(url)
        if place is None:
            return meet_at_port(url, **kwargs)
        from rueda.torch.distributed._store import meet_in_job

        return meet_in_job(*place, **kwargs)

    return meet


def _place_in_job(url):
    """(rank, size) of a process that ruedarun has started; None: another one, or a child that is placed anew."""
    given, environment = parse_qs(urlparse(url).query), os.environ
    place = [
        given.get(in_url, [environment.get(variable)])[0]
        for in_url, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
    ]
    own = [environment.get("RUEDA_RANK"), environment.get("RUEDA_SIZE")]
    if "RUEDA_AGENT_FD" not in environment or place[1] != own[1] or place[0] is None:
        return None
    return int(place[0]), int(place[1])


def _stand_in_for_gloo(c10d):
    """``RUEDA_C10D=1``: a script that asks for gloo, or for nothing where there is no GPU, gets rueda."""
    make = c10d._new_process_group_helper

    def make_ours(size, rank, ranks, backend, *arguments, **kwargs):
        asked = str(backend)
        if _is_gloo(c10d, asked):
            backend = c10d.Backend("rueda")
            if not ranks and rank == 0:
                print(
                    f"rueda: torch.distributed asked for {asked}; RUEDA_C10D gives it rueda",
                    file=sys.stderr,
                    flush=True,
                )
        return make(size, rank, ranks, backend, *arguments, **kwargs)

    c10d._new_process_group_helper = make_ours


def _is_gloo(c10d, asked):
    if asked == "undefined":
        return not c10d.torch.cuda.is_available()
    return {part.rpartition(":")[2] for part in asked.split(",")} == {"gloo"}
