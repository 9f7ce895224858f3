"""Other ways to bring ranks together than to average gradients in every step (docs/relaxed_updates.md).

    _comm_hook        the script says how gradients are combined; `_buckets` is what it is given
"""

from rueda.torch.relaxed._comm_hook import register_comm_hook

__all__ = ["register_comm_hook"]
