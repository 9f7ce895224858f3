"""Where the workers of an executor are: a placement group, the current one or one of its own."""

import time

import ray
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class Placement:
    """Reserves room for workers, and says where each goes.

    Parameters
    ----------
    bundles : list of dict
        Resources of each bundle of a placement group of its own.
    strategy : str
        Ray's, of that group.
    per_bundle : int
        Workers in each.
    resources : dict
        Of one worker.
    use_current : bool
        Whether the group that this process is in is used instead, if it is in one.
    """

    def __init__(self, bundles, strategy, per_bundle, resources, use_current):
        self._bundles, self._strategy = bundles, strategy
        self._per_bundle, self._resources = per_bundle, resources
        self._count = len(bundles) * per_bundle
        self._group = get_current_placement_group() if use_current else None
        self._is_own = self._group is None

    def reserve(self, deadline, seconds):
        """Waits for the room; TimeoutError at ``deadline`` (of time.monotonic), ``seconds`` after the start.

        ValueError if the current placement group is too small ever to have it.
        """
        if not self._is_own:
            self._check_current()
            return
        self._group = placement_group(self._bundles, strategy=self._strategy)
        if not ray.wait([self._group.ready()], timeout=max(0, deadline - time.monotonic()))[0]:
            raise self.too_late(seconds)

    def _check_current(self):
        bundles = self._group.bundle_specs
        fit = sum(_how_many(bundle, self._resources) for bundle in bundles)
        if fit < self._count:
            raise ValueError(
                f"the current placement group holds {fit} workers of {_text(self._resources)}, not "
                f"{self._count}: its bundles are {', '.join(map(_text, bundles))}. Ask for a larger one, or "
                "use_current_placement_group=False"
            )

    def options(self, index):
        """Options of worker ``index``'s actor."""
        cpus, gpus = self._resources.get("CPU", 0), self._resources.get("GPU", 0)
        return {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group,
                placement_group_bundle_index=index // self._per_bundle if self._is_own else -1,
                placement_group_capture_child_tasks=False,
            ),
        }

    def too_late(self, seconds, there=None):
        """The error for workers that have no place in time; ``there``: how many have."""
        text = f"{self._count} workers of {_text(self._resources)} were not there within {seconds:g} s"
        if there is not None:
            text += f", {there} of them were"
        if self._is_own:
            asked = ", ".join(f"{n} x {_text(b)}" for n, b in _counted(self._bundles))
            text += f". Asked for, {self._strategy}: {asked}. Present: {_nodes()}"
        else:
            asked = ", ".join(map(_text, self._group.bundle_specs))
            text += (
                f". They are to be in the current placement group, with the bundles {asked}, which others, the "
                "caller too, may have taken"
            )
        return TimeoutError(text)

    def release(self):
        """Gives back what was reserved; twice is fine."""
        if self._is_own and self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def _how_many(bundle, resources):
    return min(
        (int(bundle.get(name, 0) // amount) for name, amount in resources.items() if amount > 0),
        default=10**9,
    )


def _text(resources):
    parts = [f"{amount:g} {name}" for name, amount in resources.items() if amount > 0]
    return "{" + ", ".join(parts) + "}"


def _counted(bundles):
    texts = {}
    for bundle in bundles:
        texts.setdefault(_text(bundle), []).append(bundle)
    return [(len(alike), alike[0]) for alike in texts.values()]


def _nodes():
    free = _free()
    parts = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        has, left = node["Resources"], free.get(node["NodeID"], {})
        counts = [
            f"{left.get(name, 0):g} of {has[name]:g} {name} free" if free else f"{has[name]:g} {name}"
            for name in ("CPU", "GPU")
            if has.get(name)
        ]
        parts.append(
            f"node {node['NodeManagerAddress']} {node['NodeID'][:8]} with {', '.join(counts) or 'no CPU'}"
        )
    return "; ".join(parts) or "no node"


def _free():
    """{Ray's id of a node: what is free there}; empty where this release of Ray does not say, in its private module."""
    try:
        return ray._private.state.available_resources_per_node()
    except Exception:
        return {}
