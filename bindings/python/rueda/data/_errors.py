"""What can go wrong with data, and libraries that are not there."""

import importlib


class DataError(RuntimeError):
    """Data could not be read. The text names the file and the sample; the cause, where there is one, says why."""


def library(name, user, package):
    """The module ``name``; ImportError that says what to install where this Python has it not."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != name.split(".")[0]:
            raise
        raise ImportError(
            f"{user} needs {package}, which this Python has not: pip install {package}", name=error.name
        ) from None


def with_note(error, text):
    """Says more about an exception that goes on to the user as it is (from Python 3.11 on)."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    return error
