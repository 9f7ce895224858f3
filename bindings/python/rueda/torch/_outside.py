"""Functions that torch.compile leaves alone: a graph ends before them, and they run as written.

As ``torch.compiler.disable`` does, but a call costs nothing more without a compiler, and
``torch._dynamo`` (seconds to import) need not be imported.
"""

import torch

_frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)  # None before 2.0


def outside_graphs(function, calls_too=True):
    """Marks a Python function; returns it.

    ``calls_too``: whatever it calls is left alone as well. Without, that may be compiled.
    """
    function._torchdynamo_disable = True  # where a call of it would be compiled
    function._torchdynamo_disable_msg = "it hands tensors to rueda, which works on them meanwhile"
    code = function.__code__  # where it is called by what is not compiled, such as a hook
    if hasattr(_frames, "set_code_exec_strategy"):  # PyTorch 2.7
        skip = _frames._FrameAction.SKIP
        called = skip if calls_too else _frames._FrameAction.DEFAULT
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, called))
    elif hasattr(_frames, "skip_code"):
        _frames.skip_code(code)
    return function
