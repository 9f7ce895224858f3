"""A loader as Keras wants its data: a `keras.utils.PyDataset`, and a callback that follows training."""

from rueda.data._errors import library


def keras_data(loader):
    """(data set, callback) of a loader."""
    keras = library("keras", "DataLoader.keras()", "keras")

    class Data(keras.utils.PyDataset):
        """The batches that are left of the loader's epoch, in their order. Keras may begin it anew, and look at a few before."""

        def __init__(self):
            super().__init__()
            self._reading, self._next = None, 0

        def __len__(self):
            return len(loader)

        def __getitem__(self, index):
            if index == 0:
                self._end()
                self._reading = loader._reading()
            elif index != self._next or self._reading is None:
                raise ValueError(
                    f"Keras asks for batch {index} where {self._next} is the next: call fit(shuffle=False); "
                    "the loader has shuffled the samples already"
                )
            self._next = index + 1
            batch = self._reading.take()
            if self._next == self._reading.deal.my_steps:
                self._end()
            return batch

        def on_epoch_end(self):
            self._end()

        def _end(self):
            reading, self._reading = self._reading, None
            if reading is not None:
                reading.close()

        __del__ = _end

    class Follow(keras.callbacks.Callback):
        """Keeps the loader's place: epoch, and samples consumed in it."""

        def on_train_begin(self, logs=None):
            loader.check_ranks()

        def on_epoch_begin(self, epoch, logs=None):
            left = len(loader)
            if (self.params or {}).get("steps", left) != left:
                raise ValueError(
                    f"fit() is about to make {self.params['steps']} steps in an epoch of which {left} are left: "
                    "call fit() once for each epoch after a resume, and without steps_per_epoch"
                )
            self._deal = loader._deal()

        def on_train_batch_end(self, batch, logs=None):
            loader.consumed = self._deal.consumed_after(batch)

        def on_epoch_end(self, epoch, logs=None):
            loader.epoch, loader.consumed = loader.epoch + 1, 0

    return Data(), Follow()
