"""Loggers as callbacks of Keras and Lightning."""

from rueda.loggers._needed import needed


def keras_callback(logger):
    """A ``keras.callbacks.Callback`` that calls ``logger.step()`` after each batch, and closes it at the end."""
    keras = needed("keras", "keras", "rueda.loggers.keras_callback")

    class StatsCallback(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logger.step()

        def on_train_end(self, logs=None):
            logger.close()

    return StatsCallback()


def lightning_callback(logger):
    """A Lightning ``Callback`` that calls ``logger.step(trainer.global_step)`` after each batch, and closes it at the end."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        Callback = needed("pytorch_lightning", "lightning", "rueda.loggers.lightning_callback").Callback

    class StatsCallback(Callback):
        def on_train_batch_end(self, trainer, *unused, **more):
            logger.step(trainer.global_step)

        def on_train_end(self, trainer, *unused):
            logger.close()

    return StatsCallback()
