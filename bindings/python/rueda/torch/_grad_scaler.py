"""When PyTorch's GradScaler is about to look at gradients."""

import sys


def asks_for_gradients():
    """Whether the caller's caller is ``GradScaler`` unscaling gradients.

    `torch.amp.GradScaler` (PyTorch 1.6 to 2.13) reads them through ``optimizer.param_groups`` and ``p.grad``
    in its method ``_unscale_grads_``, which ``unscale_`` and ``step`` call. It asks the optimizer for nothing
    else before (`_step_supports_amp_scaling` only in ``step``), calls no method of it, and runs no hook. Schedulers,
    ``zero_grad`` and the optimizer's own step read ``param_groups`` too, and must not wait for gradients.
    So the only thing that tells is who asks.
    """
    return sys._getframe(2).f_code.co_name == "_unscale_grads_"
