"""The error of a wrong argument: TensorFlow's, and the ValueError that Horovod's users catch."""

import contextlib

import tensorflow as tf


class WrongArgument(tf.errors.InvalidArgumentError, ValueError):
    """What a call was given cannot be; nothing was sent. Both an InvalidArgumentError and a ValueError."""


def wrong_argument(message):
    """The error with this message, of no op."""
    return WrongArgument(None, None, message)


@contextlib.contextmanager
def arguments():
    """Where arguments are looked at: a plain ValueError of what is shared with other frameworks becomes ours."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, tf.errors.OpError):
            raise
        raise wrong_argument(str(error)).with_traceback(error.__traceback__) from None
