"""Callbacks for ``model.fit`` in elastic jobs, with Horovod's names and arguments.

Two keep ``state.batch`` and ``state.epoch``, one commits. In whatever order they are given, a commit has
the numbers of what was trained: it has them updated first.
"""

import keras


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after so many batches, and at the end of each epoch.

    The last batch of an epoch is committed with the epoch's end.

    Parameters
    ----------
    state : rueda.elastic.State
    batches_per_commit : int
    """

    def __init__(self, state, batches_per_commit=1):
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit

    def on_train_begin(self, logs=None):
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch, logs=None):
        self.batches_remaining -= 1
        places = _places_of(self.state)
        if self.batches_remaining > 0 or any(place.is_at_end(batch) for place in places):
            return
        for place in places:
            place.batch_ended(batch)
        self._commit()

    def on_epoch_end(self, epoch, logs=None):
        for place in _places_of(self.state):
            place.epoch_ended(epoch)
        self._commit()

    def _commit(self):
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


def _places_of(state):
    """Callbacks that keep this state's numbers in the training that is under way."""
    return vars(state).setdefault("_places", [])


class _PlaceCallback(keras.callbacks.Callback):
    """One that keeps a number of the state's; what it is told twice changes nothing."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_begin(self, logs=None):
        places = _places_of(self.state)
        places[:] = [each for each in places if type(each) is not type(self)] + [self]

    def on_train_batch_end(self, batch, logs=None):
        self.batch_ended(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.epoch_ended(epoch)

    def is_at_end(self, batch):
        """Whether an epoch ends with this batch."""
        return False

    def batch_ended(self, batch):
        pass

    def epoch_ended(self, epoch):
        pass


class UpdateBatchStateCallback(_PlaceCallback):
    """``state.batch`` is the number of batches that were trained in this epoch; 0 when it has ended.

    An epoch that begins with ``state.batch`` above 0 has as many batches less. (Keras must know how many
    there are: ``steps_per_epoch``, or data with a length.)
    """

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.before, self.ends_early = 0, False

    def on_epoch_begin(self, epoch, logs=None):
        self.before = self.state.batch

    def is_at_end(self, batch):
        steps = self.params.get("steps")
        return steps is not None and self.before + batch + 1 >= steps

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.before and self.is_at_end(batch):
            self.ends_early = self.model.stop_training = True  # this epoch, not the training

    def batch_ended(self, batch):
        self.state.batch = self.before + batch + 1

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if self.ends_early:
            self.ends_early = self.model.stop_training = False

    def epoch_ended(self, epoch):
        self.state.batch = 0


class UpdateEpochStateCallback(_PlaceCallback):
    """``state.epoch`` is the number of epochs that were trained, in this ``fit`` and those before."""

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.before = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.before is None:  # ``initial_epoch`` may count those of earlier ones
            self.before = self.state.epoch - epoch

    def epoch_ended(self, epoch):
        self.state.epoch = self.before + epoch + 1
