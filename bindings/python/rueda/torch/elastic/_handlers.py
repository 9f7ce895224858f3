"""How a `TorchState` saves, restores and synchronizes the objects that are more than plain ones."""

import copy

import torch

from rueda.common.process_sets import global_process_set
from rueda.data import DataLoader
from rueda.torch._outline import Outline
from rueda.torch._plain import same_objects
from rueda.torch.elastic._copies import Copies
from rueda.torch.elastic._expected import expected_tensors
from rueda.torch.elastic._sharing import EarlyDigests, share_tensors
from rueda.torch.elastic.sampler import ElasticSampler
from rueda.torch.functions import allgather_object, broadcast_object, spread_optimizer_state, whole_tensors


class StateHandler:
    """Of one object, ``value``. Base of all: subclasses say how.

    A `save` that fails leaves what was saved before, if it binds its attributes anew as its last act.
    """

    def __init__(self, value):
        self.value = value

    def save(self):
        """Keeps the object's state as it is now."""
        raise NotImplementedError()

    def restore(self):
        """Brings back what was saved."""
        raise NotImplementedError()

    def sync(self):
        """Gives all ranks rank 0's."""
        raise NotImplementedError()

    def prepare(self):
        """Has memory for what is to come from others, and for its save; the first use of memory takes longer than a copy."""

    def expect_sync(self):
        """A `sync` follows, with nothing before it that changes the object."""

    def forget_sync(self):
        """It does not."""

    def set_value(self, value):
        """Another object takes its place."""
        self.value = value
        self.save()


class _Copied(StateHandler):
    """Of what has a large ``state_dict``."""

    def __init__(self, value):
        super().__init__(value)
        self.copies = Copies(lambda: self.value.state_dict())
        self.is_settled = False  # nothing has come with the last sync, so that the next save may find it saved already
        self._early = None  # digests for the next sync

    def save(self):
        is_settled, self.is_settled = self.is_settled, False
        if not (is_settled and self.copies.is_current()):
            self.copies = self.copies.anew()

    def expect_sync(self):
        self._early = EarlyDigests(self._shared(), self.copies.of)

    def forget_sync(self):
        self._early = None

    def _shared(self):
        """The tensors that travel, in their order."""
        raise NotImplementedError()

    def _share(self, tensors, what):
        early, self._early = self._early, None
        moved = share_tensors(tensors, what, self.copies.of, early)
        self.is_settled = moved.pieces == 0


class ModelStateHandler(_Copied):
    """Of a `torch.nn.Module`: parameters and buffers."""

    def prepare(self):
        self.copies.prepare()

    def restore(self):
        self.copies.restore_by(self.value.load_state_dict)

    def _shared(self):
        return [tensor for _, tensor in whole_tensors(self.value.state_dict())]

    def sync(self):
        self.copies.hold()  # what comes overwrites it
        self._share(whole_tensors(self.value.state_dict()), "model")


class OptimizerStateHandler(_Copied):
    """Of a `torch.optim.Optimizer`: state and options."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self._room = []  # for the state of one that has not stepped yet

    def prepare(self):
        self._room = [] if self.value.state else expected_tensors(self.value)
        self.copies.prepare(self._room)

    def restore(self):
        with same_objects(self.value):
            self.copies.restore_by(self.value.load_state_dict, in_place=True)

    def _shared(self):
        outline = Outline(self.value)
        outline.read()
        return outline.tensors

    def sync(self):
        self.copies.hold()
        spread_optimizer_state(
            self.value,
            0,
            global_process_set,
            lambda tensors: self._share(tensors, "optimizer state"),
            in_place=True,
            room=self._room,
        )
        self._room = []


class DictStateHandler(StateHandler):
    """Of what has a small ``state_dict``: gradient scalers, rueda's data loaders."""

    def __init__(self, value):
        super().__init__(value)
        self.save()

    def save(self):
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self):
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


class LRSchedulerStateHandler(DictStateHandler):
    """Of a learning-rate scheduler."""


class SamplerStateHandler(DictStateHandler):
    """Of an `ElasticSampler`: what all ranks together have processed."""

    def sync(self):
        state = broadcast_object(self.value.state_dict())
        # What a rank has recorded of another epoch of the data says nothing about this one.
        mine = self.value.state_dict()
        mine = mine.get("processed_indices", ()) if mine["epoch"] == state["epoch"] else ()
        recorded = set().union(*allgather_object(set(mine)))
        state.pop("processed_indices", None)
        if recorded:
            state["processed_indices"] = recorded
        self.value.load_state_dict(state)


def _schedulers():
    module = torch.optim.lr_scheduler
    # Before PyTorch 2.0 the base has another name; ReduceLROnPlateau was none of them until 2.2.
    kinds = [getattr(module, "LRScheduler", module._LRScheduler), module.ReduceLROnPlateau]
    return [(kind, LRSchedulerStateHandler) for kind in kinds]


def _scalers():
    kinds = [getattr(getattr(torch, "amp", None), "GradScaler", None), torch.cuda.amp.GradScaler]
    return [(kind, DictStateHandler) for kind in kinds if kind is not None]


_registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (DataLoader, DictStateHandler),
    *_schedulers(),
    *_scalers(),
]


def get_handler_registry():
    """The list of (class, class of its handler); the first that fits an object handles it."""
    return _registry


def set_handler_registry(registry):
    """Another list, for states that are made from now on."""
    global _registry
    _registry = registry


def handler_of(value):
    """A new handler, or None: it is a plain object."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
