"""Which samples of an epoch a rank still has to see, also after the ranks have changed."""

import random

import torch

from rueda.torch import mpi_ops

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):
    """Deals the samples of an epoch that nobody has processed out to the ranks; Horovod's sampler.

    Call `record_batch` after each batch, and `set_epoch` at the *end* of an epoch (or it would begin
    anew after a change). As an argument of `TorchState` it is saved, restored and repartitioned.

    Parameters
    ----------
    dataset : sized
        What `torch.utils.data.DataLoader` gets.
    shuffle : bool
        Anew in each epoch, the same on all ranks.
    seed : int
        Of the shuffling; the same on all ranks.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # of the order of the epoch, from its beginning
        self._recorded = set()  # by `record_indices`, wherever they are
        self.indices = []  # this rank's, since they were iterated over
        self.reset()

    @property
    def processed_indices(self):
        """The set of samples that are done."""
        return set(self._order()[: self.processed_num]) | self._recorded

    @processed_indices.setter
    def processed_indices(self, indices):
        self.processed_num, self._recorded = 0, set(indices)

    def set_epoch(self, epoch):
        """Begins this epoch: nothing of it is processed."""
        self.epoch = epoch
        self.processed_num, self._recorded = 0, set()
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Every rank has processed a batch of ``batch_size`` samples (its own of each rank)."""
        if self._recorded:
            self.record_indices(self.get_indices(batch_idx, batch_size))
        else:
            self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices):
        """This rank has processed these samples."""
        self._recorded.update(indices)

    def get_indices(self, batch_idx, batch_size):
        """The samples of this rank's batch ``batch_idx``, counted since the last change or `set_epoch`."""
        first = batch_idx * batch_size
        return self._mine()[first : first + batch_size]

    def state_dict(self):
        """What `load_state_dict` takes: the same on every rank but for `record_indices`."""
        state = {"epoch": self.epoch, "processed_num": self.processed_num}
        if self._recorded:
            state["processed_indices"] = set(self._recorded)
        return state

    def load_state_dict(self, state_dict):
        """Goes on from there with the ranks that there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict.get("processed_num", 0)
        self._recorded = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self):
        """Deals what is left out to the ranks that there are now."""
        self.num_replicas = mpi_ops.size()
        self.rank = mpi_ops.rank()
        left = self._order()[self.processed_num :]
        self.remaining_indices = [index for index in left if index not in self._recorded] if self._recorded else left
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        self.indices = self._mine()
        return iter(self.indices)

    def __len__(self):
        return self.num_samples

    def _order(self):
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        return order

    def _mine(self):
        # Every rank gets equally many; the first ones are dealt out again where the last round is short.
        indices = self.remaining_indices
        if indices:
            indices = indices * -(-self.total_size // len(indices))
        return indices[self.rank : self.total_size : self.num_replicas]
