"""Which optimizers may be cut anywhere: those that treat every element by itself."""

import collections
import copy

import torch

from rueda.torch.sharding._stepping import unhooked

KNOWN = tuple(
    getattr(torch.optim, name)
    for name in (
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
    if hasattr(torch.optim, name)
)

# torchao's: element by element but for the scales of blocks of state, which shares are cut at
KNOWN_BLOCKWISE = "Adam8bit", "AdamW8bit", "Adam4bit", "AdamW4bit", "AdamFp8", "AdamWFp8"


def require_elementwise(optimizer):
    """ValueError names an optimizer whose update of an element depends on other elements."""
    kind = type(optimizer)
    if kind in KNOWN or (kind.__module__.split(".")[0] == "torchao" and kind.__name__ in KNOWN_BLOCKWISE):
        return
    try:
        differs = _differs_when_cut(optimizer)
    except Exception as error:
        raise ValueError(_refusal(kind, f"it could not be tried on cut parameters: {error}")) from error
    if differs:
        raise ValueError(_refusal(kind, "cut parameters are updated differently than whole ones"))


def _refusal(kind, why):
    return (
        f"{kind.__name__} cannot be sharded: {why}. Optimizers that work element by element can "
        f"({', '.join(known.__name__ for known in KNOWN)}, and others that pass this check); leave out shard= for this one."
    )


def _differs_when_cut(optimizer):
    """Tries it: three steps of a matrix against three steps of the same numbers, flat and in two parts."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(6, 8, generator=generator)
    gradients = [torch.randn(6, 8, generator=generator) for _ in range(3)]
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    for option in options[:1]:
        matrix = torch.nn.Parameter(whole.clone())
        parts = [torch.nn.Parameter(part.clone()) for part in whole.flatten().split(20)]
        one, other = _copy(optimizer, [matrix], option), _copy(optimizer, parts, option)
        for gradient in gradients:
            matrix.grad = gradient.clone()
            for part, cut in zip(parts, gradient.flatten().split(20)):
                part.grad = cut.clone()
            one.step()
            other.step()
        if not torch.allclose(matrix.detach().flatten(), torch.cat([p.detach() for p in parts]), rtol=1e-5, atol=1e-7):
            return True
    return False


def _copy(optimizer, parameters, options):
    """The same optimizer of other parameters, without state."""
    made = optimizer.__class__.__new__(optimizer.__class__)
    made.__dict__.update(vars(optimizer))
    made.__dict__.pop("step", None)  # a scheduler's
    for name in [name for name in vars(made) if name.endswith("_hooks")]:
        setattr(made, name, collections.OrderedDict())
    made.state = collections.defaultdict(dict)
    made.param_groups = [{**copy.deepcopy(options), "params": parameters}]
    return made


def kept_for_each_element(optimizer):
    """Of the optimizer's state, what it has for each element of a float32 parameter: {key: bytes of one}.

    Found by a step of a small parameter; empty where that fails.
    """
    if hasattr(optimizer, "_new_buffer"):  # torchao's, whose steps are compiled for every size
        names = "exp_avg", "exp_avg_sq", "max_exp_avg_sq"
        return dict.fromkeys(names[: 3 if optimizer.defaults.get("amsgrad") else 2], 1)
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups][:1]
    makers = (
        lambda p: _copy(optimizer, [p], options[0]),
        lambda p: type(optimizer)([p], **optimizer.defaults),  # what has its state from the beginning
    )
    for maker in makers if options else ():
        p = torch.nn.Parameter(torch.ones(8, dtype=torch.float32, device="cpu"))
        p.grad = torch.ones_like(p)
        try:
            made = maker(p)
            unhooked(type(made))(made)
        except Exception:
            continue
        state = made.state[p].items()
        return {key: v.element_size() for key, v in state if isinstance(v, torch.Tensor) and v.shape == p.shape}
    return {}
