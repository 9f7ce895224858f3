"""Memory that the library owns, as something NumPy and PyTorch can look into without a copy."""

from ctypes import c_char


def memory_view(address, nbytes, owner):
    """A writable buffer over the memory; whatever looks into it keeps ``owner`` alive."""
    view = (c_char * nbytes).from_address(address)
    view._owner = owner
    return view
