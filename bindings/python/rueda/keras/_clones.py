"""Optimizers that are made again of a distributed one's configuration, in this process, are distributed as it is.

Keras clones an optimizer by ``get_config`` and ``from_config``: that of its class, which the configuration
names. A saved model must know nothing of rueda, so how gradients are reduced is an attribute of one of the
configuration's texts: it is there in what is handed on in this process, and not in what comes from a file.
"""

import functools

import keras


class Name(str):
    """The name of a distributed optimizer, which knows how its gradients are reduced."""

    def __new__(cls, text, reduction):
        new = super().__new__(cls, text)
        new.reduction = reduction
        return new

    def __reduce__(self):
        return Name, (str(self), self.reduction)


def reduction_of(config):
    """None of a configuration that is not a distributed optimizer's, or comes from a file."""
    return getattr(config.get("name"), "reduction", None)


def remade(base, config):
    """An optimizer of class ``base``, distributed if the configuration is."""
    return base.from_config(config)


def keep_distributed(find_class):
    """`from_config` of Keras's own classes gives one of ``find_class(cls)`` where the configuration says so."""
    for each in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        owner = next(base for base in each.__mro__ if "from_config" in vars(base))
        plain = vars(owner)["from_config"].__func__
        if hasattr(plain, "__wrapped__"):  # both inherit the same one
            continue

        @functools.wraps(plain)
        def from_config(cls, config, *args, plain=plain, **kwargs):
            if reduction_of(config) is None:
                return plain(cls, config, *args, **kwargs)
            return find_class(cls).from_config(config, *args, **kwargs)

        owner.from_config = classmethod(from_config)
