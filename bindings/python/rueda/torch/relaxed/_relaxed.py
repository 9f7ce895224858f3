"""What optimizers that bring the ranks together less often, or later, have in common."""

from rueda.common import basics
from rueda.common.process_sets import require_registered
from rueda.torch import _epochs, _owners
from rueda.torch._distributed import _Distributed, derived
from rueda.torch._parameters import name_parameters
from rueda.torch._policies import Settings
from rueda.torch.compression import Compression
from rueda.torch.sharding import Sharded

OWN = "rueda"  # key in state_dict() of what a plain optimizer does not have


def wrap(kind, optimizer, named_parameters, process_set, passes, options, compression=Compression.none):
    """An optimizer of class ``kind`` and of the optimizer's own. ``options``: its `_configure` takes them."""
    if isinstance(optimizer, (_Distributed, Sharded)):
        raise ValueError(
            f"hvd.{kind._kind} takes the plain optimizer, not what hvd.DistributedOptimizer (with op=Adasum, shard=, ...) "
            "or another of hvd's wrappers returned"
        )
    _epochs.refuse(f"hvd.{kind._kind}")
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    require_registered(process_set)
    names = name_parameters(optimizer, named_parameters)
    prefix = _owners.prefix(names.values())
    settings = Settings(basics.Average, 1.0, 1.0, process_set, compression, prefix)
    result = derived(optimizer, kind)
    result._configure(**options)
    lends = kind._reduces_in_steps and compression is Compression.none
    result._setup(optimizer, names, settings, passes, [], False, None, lends)
    result._plain.refuse_steps()
    result._begin()
    return result


class Relaxed(_Distributed):
    """Before the wrapped optimizer's class."""

    _takes_hooks = _sends_gradients = False
    _reduces_in_steps = False  # always, not only in the first ones
    _counts_steps = True  # so the plain optimizer's own are an error
    _kind = ""

    def _configure(self, **options):
        """Takes what the optimizer was made with."""
        raise NotImplementedError

    def _begin(self):
        """Everything is there."""

    def _all_parameters(self):
        """(name, parameter) of all groups, frozen ones too, new ones named."""
        groups = [group["params"] for group in self.__dict__["param_groups"]]
        self._name_new(groups)
        return [(self._parameter_names[p], p) for parameters in groups for p in parameters]

    def _own_state(self):
        """What `state_dict` has more than the plain optimizer's."""
        raise NotImplementedError

    def _check_own_state(self, state):
        """ValueError where `_take_own_state` could not take what `_own_state` gave."""

    def _take_own_state(self, state):
        """``state``: what `_own_state` gave; None: a plain optimizer's was loaded."""
        raise NotImplementedError

    def state_dict(self):
        """The wrapped optimizer's, with what this one knows more under the key "rueda"; a plain optimizer can load it.

        It waits for what is under way. All ranks must call it where compression is int8, top-k or PowerSGD and something
        may be under way (`AsyncOptimizer`, `DiLoCo` with a delay): their reductions go on while all ranks wait for them.
        """
        state = super().state_dict()
        state[OWN] = {"kind": self._kind, **self._own_state()}
        return state

    def load_state_dict(self, state_dict):
        """Takes such a one, or a plain or sharded optimizer's; that begins anew. ValueError for another wrapper's.

        After a ValueError for what this wrapper keeps everything is as it was.
        """
        own = state_dict.get(OWN)
        if own is not None and own.get("kind") is None:  # of a sharded one
            own = None
        if own is not None:
            if own["kind"] != self._kind:
                raise ValueError(f"this is the state of hvd.{own['kind']}, not of hvd.{self._kind}")
            self._check_own_state(own)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != OWN})
        self._take_own_state(own)

    def finish(self):
        """Brings all ranks to equal parameters; all must call it. Training may go on."""
        raise NotImplementedError
