"""Libraries that are imported when somebody uses them."""

import importlib


def needed(module, package, user):
    """The module; ImportError with the line that installs it. ``user``: who needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{user} needs {package}: pip install {package} ({error})") from error
