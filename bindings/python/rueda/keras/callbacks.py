"""Callbacks for ``model.fit``, with Horovod's names and arguments."""

import keras

from rueda._numpy import np
from rueda._runtime import runtime
from rueda.common import basics
from rueda.keras import _framework, functions


def _rate(optimizer):
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def _number_of_epoch():
    """Of the membership of an elastic job."""
    return None if runtime.epoch is None else runtime.epoch.number


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Before the first batch, the model and its optimizer get the values of ``root_rank``.

    In an elastic job again, by all ranks, when they have changed: a rank that has joined does it for the first time.

    Parameters
    ----------
    root_rank : int
    device : str
        Horovod's.
    local_variables : list of keras.Variable, optional
        Keep this rank's values.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = list(local_variables or ())
        self.broadcast_done = False
        self._epoch = _number_of_epoch()

    def _broadcast(self):
        self.broadcast_done = True
        _framework.settle(self.model)
        kept = {id(each) for each in self.local_variables}
        variables = [*self.model.weights, *self.model.optimizer.variables]
        functions.broadcast_variables([v for v in variables if id(v) not in kept], self.root_rank)

    def on_train_begin(self, logs=None):
        if self._epoch != _number_of_epoch():
            self._epoch, self.broadcast_done = _number_of_epoch(), False
        if self.broadcast_done or not all(layer.built for layer in self.model._flatten_layers()):
            return  # build() leaves a model's layers to its first batch, where the model has no build() of its own
        if not self.model.optimizer.built:  # on TensorFlow Keras does it in the first batch
            self.model.optimizer.build(self.model.trainable_variables)
        self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if not self.broadcast_done:  # of a model that is built by its first batch
            self._broadcast()


class MetricAverageCallback(keras.callbacks.Callback):
    """At the end of an epoch, metrics become their averages over the ranks.

    Callbacks that come after it see these: stopping early, saving the best. Ranks have the same metrics.
    """

    def __init__(self, device=""):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        names = sorted(logs or ())
        every = functions.allgather_object(names, "rueda.keras.metrics.names")
        if any(each != names for each in every):
            raise ValueError(
                f"MetricAverageCallback: ranks have other metrics, {', '.join(names)} here and "
                f"{', '.join(next(each for each in every if each != names))} elsewhere: give fit() the same on all, as validation_data"
            )
        mine = np.array([float(logs[name]) for name in names])
        averages = functions.allreduce(mine, name="rueda.keras.metrics") if names else ()
        logs.update((name, float(value)) for name, value in zip(names, averages))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """The learning rate is ``initial_lr`` times a multiplier, from ``start_epoch`` until ``end_epoch``.

    Parameters
    ----------
    initial_lr : float
    multiplier : float, or callable
        A function of the epoch, which is a whole number if ``staircase``, else changes with each batch. Of a number it
        is the power: exponential decay from ``start_epoch`` on.
    start_epoch, end_epoch : int
        The first epoch, and the one behind the last; None: to the end.
    staircase : bool
        Change the rate with each epoch, not with each batch.
    momentum_correction : bool
        Momentum that was gathered at the old rate is scaled to the new one (SGD, RMSprop).
    steps_per_epoch : int, optional
        Batches in an epoch, where Keras does not know.
    """

    def __init__(
        self,
        initial_lr,
        multiplier,
        start_epoch=0,
        end_epoch=None,
        staircase=True,
        momentum_correction=True,
        steps_per_epoch=None,
    ):
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is required")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = None

    def on_train_begin(self, logs=None):
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__}: Keras does not know how many steps an epoch has; pass steps_per_epoch"
            )

    def on_epoch_begin(self, epoch, logs=None):
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(epoch)

    def on_epoch_end(self, epoch, logs=None):
        _framework.settle(self.model)
        if logs is not None:
            logs["lr"] = _rate(self.model.optimizer)

    def _adjust(self, epoch):
        _framework.settle(self.model)
        optimizer = self.model.optimizer
        old, new = _rate(optimizer), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if not (self.momentum_correction and old and getattr(optimizer, "momentum", None)):
            return
        # Horovod changes the momentum for one batch, a number that compiled steps do not look at again.
        gathered = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
        for each in gathered or ():
            if each is not None:
                each.assign(each.value * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From ``initial_lr / size()`` to ``initial_lr`` within the first epochs.

    Parameters
    ----------
    initial_lr : float
        The rate of the whole job, which other schedules go on from: usually one rank's times `size()`.
    warmup_epochs : int
    momentum_correction, steps_per_epoch
        As in `LearningRateScheduleCallback`.
    verbose : int
        1: rank 0 says so when it is over.
    """

    def __init__(
        self, initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0
    ):
        super().__init__(
            initial_lr,
            self._factor,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def _factor(self, epoch):
        size = basics.size()
        epoch += 1.0 / self.steps_per_epoch  # round numbers at the end of an epoch
        return (epoch * (size - 1) / self.end_epoch + 1) / size

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.end_epoch - 1 and basics.rank() == 0:
            rate = _rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Rank 0 saves the model when ``monitor`` is better than ever before.

    The file is ``filepath``, which may be set after the callback was made. `MetricAverageCallback` before
    it makes the best one that of all ranks.
    """

    def __init__(
        self,
        monitor="val_loss",
        verbose=0,
        mode="auto",
        save_freq="epoch",
        save_weights_only=False,
        filepath=None,
    ):
        wanted = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            f"best{wanted}" if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def _save_model(self, epoch, batch, logs):
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set its filepath before fit()")
        if basics.rank() == 0:
            super()._save_model(epoch, batch, logs)
