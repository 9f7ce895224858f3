"""The loader: an epoch's order, dealt out, read ahead, and where in it training is."""

import weakref

from rueda._numbers import whole_number
from rueda._objects import allgather_object
from rueda._runtime import runtime
from rueda._waiting import join
from rueda.common.process_sets import global_process_set
from rueda.data import _listing, _memory
from rueda.data._batches import Reader
from rueda.data._convert import converter, settler
from rueda.data._deal import UNEVEN, Deal
from rueda.data._errors import DataError
from rueda.data._order import Order, order_text
from rueda.data._reading import Reading


class DataLoader:
    """Batches of this rank's samples, read ahead in the background.

    A loop over it goes through what is left of the current epoch, and moves on to the next one when it has come to its end. All
    ranks make it with the same arguments, and begin their loops together. One loop at a time: a new one ends the one before.

    Parameters
    ----------
    source : object
        With ``len(source)`` and ``source[index]``, which any thread may call: `Arrays`, `Files`, `Parquet`, `WebDataset`, a
        data set of PyTorch. With ``__getitems__(indices)`` too, samples are read by the batch.
    batch_size : int
        Samples of a rank in a step.
    shuffle : bool
        In another order each epoch, the same on all ranks.
    seed : int
        Of the order.
    uneven : "drop" or "join"
        What becomes of samples at an epoch's end that do not fill a batch on every rank. "drop": they are left out, and all batches
        are of one size. "join": each sample comes, and the last batches are smaller. Where the last step has fewer samples than ranks,
        ranks that have none call `hvd.join` at the end of their loop, which lets the others make it; see `weight` and `joined`.
    to : "numpy", "torch" or "jax"
        What the arrays of a batch are.
    transform : callable, optional
        Of a sample, to what becomes of it, in the background.
    collate : callable, optional
        Of a list of samples, to a batch. Without, dicts and tuples stay what they are, numbers and arrays are stacked, anything
        else becomes a list.
    prefetch : int
        Batches that are read before they are asked for; 0: none, and nothing runs in the background.
    workers : int
        Threads that read, each another batch; no more than ``prefetch`` of them are used.
    processes : bool
        Let each thread have a process that reads for it, for transforms that are Python: forked when a loop begins, so the source
        need not be copied. Their batches come through a pipe.
    shared : bool
        Whether batches lie in the memory that the host's ranks share (`hvd.empty`), where there is room: collectives on them copy
        nothing, and pages are used again.
    process_set : ProcessSet
        The ranks to deal to.
    place : (int, int), optional
        Rank and number of ranks to read as, instead of this rank's among all; nothing is sent to other ranks then. ``(0, 1)``:
        everything, as for evaluation on one rank.

    Attributes
    ----------
    epoch : int
        The current one, from 0.
    consumed : int
        Samples of it that all ranks together have been given.
    joined : int or None
        Of the epoch that a loop has just ended: None, if all ranks have made all of its steps. Else one that has, as by `hvd.join`;
        the others lack the last step: broadcast parameters and the optimizer's state from it.
    weight : float
        By what to multiply the newest batch's mean loss (or gradients), so that their average over the ranks is that over all
        samples of the step: 1 where all ranks have as many.

    Raises
    ------
    ValueError
        An argument is wrong, or the source is empty, or has fewer samples than there are ranks (or, to drop, than a step takes).
    ImportError
        The framework of ``to`` is not there.
    """

    def __init__(
        self,
        source,
        batch_size,
        *,
        shuffle=True,
        seed=0,
        uneven="drop",
        to="numpy",
        transform=None,
        collate=None,
        prefetch=2,
        workers=1,
        processes=False,
        shared=True,
        process_set=global_process_set,
        place=None,
    ):
        if uneven not in UNEVEN:
            raise ValueError(f'uneven={uneven!r}: expected "drop" or "join"')
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise TypeError(f"{type(source).__name__} is no source: it needs len(source) and source[index]")
        batch_size = whole_number("batch_size", batch_size, 1)
        prefetch, workers = whole_number("prefetch", prefetch, 0), whole_number("workers", workers, 1)
        if prefetch == 0 and processes:
            raise ValueError("processes=True reads ahead: prefetch=1 or more")
        self._source, self._samples, self._batch_size = source, len(source), batch_size
        self._blocks, self._window = getattr(source, "blocks", None), getattr(source, "window", 1)
        self._shuffle, self._seed, self._uneven = bool(shuffle), whole_number("seed", seed), uneven
        self._read, self._convert, self._settle = Reader(source, transform, collate), converter(to), settler(to)
        self._prefetch, self._workers, self._processes = prefetch, workers, processes
        self._empty = _memory.shared if shared else _memory.private
        self._process_set, self._given_place = process_set, place
        self._order_text = order_text(self._shuffle, self._blocks, self._window)
        self._balance = None
        self._loop = lambda: None  # gives the newest one, while there is one
        self.epoch, self.consumed, self.weight, self.joined = 0, 0, 1.0, None
        self._check_size()

    def __iter__(self):
        self.close()
        self._check_size()  # the ranks may have changed
        if self._uneven == "join" and runtime.epoch is not None and runtime.epoch.elastic:
            raise ValueError('uneven="join" in an elastic job: its commits need all ranks, and who has joined makes none; uneven="drop"')
        self.check_ranks()
        loop = _Loop(self, *self._place())
        self._loop = weakref.ref(loop)
        return loop

    def __len__(self):
        """Batches that this rank still has in this epoch."""
        return self._deal().my_steps

    def __reduce__(self):
        raise TypeError("a loader cannot be copied or pickled: keep its state_dict()")

    def set_epoch(self, epoch):
        """Begins this epoch; the current one goes on with what is left of it. Loops do it at their end by themselves."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self.close()
            self.epoch, self.consumed = epoch, 0

    def state_dict(self):
        """Where training is, as plain values, the same on all ranks: behind the batches that loops have given so far."""
        return {
            "seed": self._seed,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "samples": self._samples,
            "order": self._order_text,
        }

    def load_state_dict(self, state):
        """Goes on there, on any number of ranks, with any size of batches. Ends the current loop.

        ValueError where the state is of other data, or of another order: the samples that come would be others.
        """
        for name, mine in (("samples", self._samples), ("order", self._order_text)):
            if state[name] != mine:
                raise ValueError(
                    f"this state is of a loader with {name} {state[name]!r}, this one has {mine!r}: its place is of no use here"
                )
        self.reset()
        self._seed, self.epoch, self.consumed = state["seed"], state["epoch"], state["consumed"]

    def reset(self):
        """The ranks have changed: ends the loop; a new one deals what is left of the epoch out to those that there are now."""
        self.close()
        if self._balance is not None:
            self._balance.forget()

    def close(self):
        """Ends the loop, if there is one, with its threads and processes. A loop that is left and forgotten ends by itself."""
        loop = self._loop()
        if loop is not None:
            loop.close()

    def keras(self):
        """``(data, callback)`` for ``model.fit(data, callbacks=[callback], shuffle=False)``; see docs/data.md.

        ``data`` is a `keras.utils.PyDataset`. The callback, the first of several, tells this loader where training is, without
        which each epoch would have the same order.
        """
        from rueda.data._keras import keras_data

        if self._uneven == "join":
            raise ValueError('fit() has as many steps on all ranks: make the loader with uneven="drop"')
        if self._balance is not None:
            raise ValueError("fit() gives each rank's mean the same weight: balance() is for loops of your own")
        return keras_data(self)

    def _place(self):
        return self._given_place or _listing.place(self._process_set)

    def _deal(self):
        rank, size = self._place()
        shares = [self._batch_size] * size if self._balance is None else self._balance.of(size)
        return Deal(self._samples, self.consumed, shares, rank, self._uneven)

    def _reading(self):
        """What is left of the epoch."""
        order = Order(self._samples, self._shuffle, self._seed, self.epoch, self._blocks, self._window)
        return Reading(
            self._deal(), order, self._read, self._empty, self._prefetch, self._workers, self._processes
        )

    def _check_size(self):
        if self._samples == 0:
            raise ValueError(f"{self._source!r} is empty: there is no sample to train on")
        size = self._place()[1]
        if self._samples < size:
            raise ValueError(f"{self._source!r} has {self._samples} samples for {size} ranks: use fewer ranks, or more data")
        if self._uneven == "drop" and self._samples < size * self._batch_size:
            raise ValueError(
                f"{self._source!r} has {self._samples} samples, and a step takes {self._batch_size} on each of {size} ranks: "
                'all would be dropped; use smaller batches, or uneven="join"'
            )

    def check_ranks(self):
        """DataError on all ranks where they are about to read different things. All ranks call it; loops do."""
        if self._place()[1] == 1 or self._given_place is not None:
            return
        mine = {**self.state_dict(), "batch_size": self._batch_size, "uneven": self._uneven, "shares": self._deal().shares}
        every = allgather_object(mine, "rueda.data.agree", self._process_set)
        for other, theirs in zip(self._process_set.ranks, every):
            names = [name for name in mine if theirs[name] != every[0][name]]
            if names:
                raise DataError(
                    f"ranks read different data: {names[0]} is {theirs[names[0]]!r} on rank {other} "
                    f"and {every[0][names[0]]!r} on rank {self._process_set.ranks[0]}"
                )


class _Loop:
    """One loop: the batches of a `Reading`, noted in the loader when they are given."""

    def __init__(self, loader, rank, size):
        self._loader, self._rank, self._size = loader, rank, size
        self._reading = loader._reading()
        self._step = 0
        self._is_over = False
        self._finalizer = weakref.finalize(self, self._reading.close)

    def __iter__(self):
        return self

    def __next__(self):
        if self._is_over:
            raise StopIteration
        if not self._finalizer.alive:
            raise RuntimeError("this loop was ended: the loader's place has changed, or another loop has begun")
        loader, deal, step = self._loader, self._reading.deal, self._step
        if step == deal.my_steps:
            self._end()
            raise StopIteration
        try:
            batch = loader._convert(self._reading.take())
        except BaseException:
            self.close()
            raise
        counts = deal.counts(step)
        loader.weight = counts[self._rank] * self._size / sum(counts)
        loader.consumed = deal.consumed_after(step)
        if loader._balance is not None:
            loader._balance.given(counts[self._rank])
        self._step += 1
        return batch

    def _end(self):
        self.close()
        loader = self._loader
        if self._reading.deal.is_even or loader._given_place is not None:
            loader.joined = None
        else:
            loader._settle()  # as a rank that has joined starts nothing
            loader.joined = join(process_set=loader._process_set)
        if loader._balance is not None and self._size > 1:
            loader._balance.settle(loader._process_set)
        self._is_over = True
        loader.epoch, loader.consumed, loader.weight = loader.epoch + 1, 0, 1.0

    def close(self):
        self._finalizer()
