"""Where the state of an optimizer may come from: what all sources have, and the one that is a plain ``state_dict``."""

import torch

from rueda.torch.sharding._layout import is_dense


class Source:
    """State of an optimizer by parameter, whole, some elements of which can be had.

    Attributes
    ----------
    names : dict
        Of parameters' numbers, names; empty where none are known.
    groups : list of (dict, list)
        Of each ``param_group``, its options and its parameters' numbers.
    roundings : int
        See `_codecs`.
    """

    names, roundings = {}, 0

    def scalars(self, number):
        """Of a parameter's state, what is one value for all of its elements."""
        raise NotImplementedError

    def forms(self, number):
        """Of a parameter's state, what is a value for each element: {key: (dtype, shape, stride)}. Elements lie as
        the stride says, one behind the other."""
        raise NotImplementedError

    def read(self, number, key, first, last):
        """The elements [first, last) of such a value, flat."""
        raise NotImplementedError

    def whole(self, number, key):
        """Such a value in its shape."""
        dtype, shape, stride = self.forms(number)[key]
        result = torch.empty_strided(shape, stride, dtype=dtype)
        count = result.numel()
        flat = result.as_strided((count,), (1,))
        flat.copy_(self.read(number, key, 0, count))
        return result

    def match(self, originals, names):
        """{parameter: number}, group by group: by name if all are known on both sides, else by place.

        Parameters
        ----------
        originals : list of lists of parameters
            Of each group.
        names : dict
            Of parameters.
        """
        if len(self.groups) != len(originals):
            raise ValueError(
                f"loaded state dict has {len(self.groups)} parameter groups, the optimizer {len(originals)}"
            )
        numbers = {}
        for (_, theirs), parameters in zip(self.groups, originals):
            if len(theirs) != len(parameters):  # who saved may have left out what is not trained
                trained = [p for p in parameters if p.requires_grad]
                if len(theirs) != len(trained):
                    raise ValueError(
                        f"loaded state dict has a parameter group of {len(theirs)} parameters where the optimizer's "
                        f"has {len(parameters)}"
                    )
                parameters = trained
            by_name = {_bare(self.names[n]): n for n in theirs if n in self.names}
            wanted = [_bare(names.get(p, "")) for p in parameters]
            if set(by_name) == set(wanted) and len(by_name) == len(parameters):
                theirs = [by_name[name] for name in wanted]
            numbers.update(zip(parameters, theirs))
        return numbers


def _bare(name):
    """Without what wrappers of modules put before names."""
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


class Plain(Source):
    """A ``state_dict()`` of a plain optimizer."""

    def __init__(self, state_dict):
        self._state = state_dict["state"]
        self.roundings = state_dict.get("rueda", {}).get("roundings", 0)
        self.groups, self.names = [], {}
        for group in state_dict["param_groups"]:
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            self.groups.append((options, list(group["params"])))
            self.names.update(zip(group["params"], group.get("param_names", ())))

    def scalars(self, number):
        return {key: v for key, v in self._of(number).items() if not _has_elements(v)}

    def forms(self, number):
        return {
            key: (v.dtype, tuple(v.shape), _dense(v).stride()) for key, v in self._of(number).items() if _has_elements(v)
        }

    def read(self, number, key, first, last):
        value = _dense(self._of(number)[key])
        return value.as_strided((value.numel(),), (1,), value.storage_offset())[first:last]

    def _of(self, number):
        return self._state.get(number) or {}


def _has_elements(value):
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _dense(value):
    value = value.detach()
    if hasattr(value, "dequantize") and type(value) is not torch.Tensor:
        value = value.dequantize()
    return value if is_dense(value.shape, value.stride()) else value.contiguous()


def plain(source):
    """The ``state_dict`` of a plain optimizer."""
    state = {}
    for _, numbers in source.groups:
        for number in numbers:
            parts = {**source.scalars(number), **{key: source.whole(number, key) for key in source.forms(number)}}
            if parts:
                state[number] = parts
    groups = [{**options, "params": list(numbers)} for options, numbers in source.groups]
    return {"state": state, "param_groups": groups}
