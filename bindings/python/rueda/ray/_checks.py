"""What executors are given: each check returns the value as it is used, or says in one sentence what was expected."""

from rueda._numbers import whole_number
from rueda.compat.launch_plan import pair_problem


def whole(where, name, value, least=1):
    """A count; None stays None."""
    return None if value is None else whole_number(f"{where}: {name}", value, least)


def seconds(where, name, value):
    """A time that has to pass."""
    if not _is_number(value) or not value > 0:
        raise ValueError(f"{where}({name}={value!r}): expected seconds, more than 0")
    return value


def interfaces(where, nics):
    """Names of network interfaces as a frozenset, of a text with commas too; None: whichever."""
    names = nics.split(",") if isinstance(nics, str) else nics
    try:
        names = frozenset(names or ())
    except TypeError:
        names = None
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{where}(nics={nics!r}): expected names of network interfaces, such as ['eth0']")
    return names or None


def cooldown(where, value):
    """(least, most) seconds; None: a lost host never comes back."""
    if value is None:
        return None
    problem = pair_problem(value)
    if problem:
        raise ValueError(f"{where}(cooldown_range=...): {problem}")
    return tuple(value.split() if isinstance(value, str) else value)


def limits(where, names, least, start, most):
    """Numbers of ranks of an elastic job, as ints. ``names``: what the caller calls them; None: as there is room for."""
    counts = [whole(where, name, value) for name, value in zip(names, (least, start, most))]
    given = [(n, v) for n, v in zip(names, counts) if v is not None]
    for (low, fewer), (high, more) in zip(given, given[1:]):
        if fewer > more:
            raise ValueError(
                f"{where}({low}={fewer}, {high}={more}): expected {' <= '.join(name for name, _ in given)}"
            )
    return counts


def resources(where, use_gpu, cpus, gpus, each):
    """Ray's resources of one rank. ``each``: what the caller calls a rank in ``cpus_per_...``."""
    if gpus and not use_gpu:
        raise ValueError(f"gpus_per_{each} is given without use_gpu=True")
    if not _is_number(cpus) or not cpus >= (0 if use_gpu else 1e-4):
        least = "0 or more" if use_gpu else "more than 0"
        raise ValueError(f"{where}(cpus_per_{each}={cpus!r}): expected a number of CPUs, {least}")
    if not use_gpu:
        return {"CPU": cpus}
    gpus = 1 if gpus is None else gpus
    if not _is_number(gpus) or not gpus >= 1e-4:
        raise ValueError(f"{where}(gpus_per_{each}={gpus!r}): expected a number of GPUs, more than 0")
    return {"CPU": cpus, "GPU": gpus}


def made_by(settings, kind, maker):
    """TypeError for settings of another kind, another executor's say."""
    if not isinstance(settings, kind):
        raise TypeError(f"settings={settings!r}: expected what {maker}() returns")
    return settings


def discovery(value):
    """An object that can be asked for hosts."""
    if not callable(getattr(value, "find_available_hosts_and_slots", None)):
        raise TypeError(
            f"settings.discovery={value!r}: expected an object with find_available_hosts_and_slots(), such as a "
            "RayHostDiscovery"
        )
    return value


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)
