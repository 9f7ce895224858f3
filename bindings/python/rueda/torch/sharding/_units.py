"""Which modules are gathered as one, and which parameters are theirs: what FSDP calls wrapping. Changes nothing.

    model                          units
      embedding    (large)         embedding
      blocks[0]                    blocks.0     its attention, its MLP, ...
      blocks[1]                    blocks.1
      norm         (small)         (model)      what is left: gathered while the model's forward runs
      head.weight = embedding.weight     embedding, head: gathered for each of the two

A parameter belongs to the innermost unit around the module that has it; one that several units have is a unit of
its own, which is gathered for each of them.
"""

import collections

import torch

UNIT_BYTES = 1 << 20  # modules with less are gathered with what is around them

Plan = collections.namedtuple("Plan", "name modules parameters is_outer")
Plan.__doc__ = """One unit. ``modules``: whose forward needs it; ``is_outer``: other units may be gathered meanwhile."""

_CONTAINERS = torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict


def plan_units(root, units=None):
    """The `Plan` of each unit that has parameters, in the order of ``root.named_parameters()``.

    Parameters
    ----------
    units
        None, or bytes: blocks, which are in a ModuleList, Sequential or ModuleDict, and other modules, of at least so
        many bytes of parameters. A list of modules of ``root`` and classes of modules. Or a function that says of a
        module whether it is a unit.
    """
    names = {module: name for name, module in root.named_modules()}
    chosen = _choose(root, units, names)
    users = {}  # parameter: the unit modules that have it, in order
    outer = set()

    def visit(module, around):
        if module in chosen and module is not root:
            outer.update(around)
            around = (*around, module)
        for p in module._parameters.values():
            if p is not None:
                users.setdefault(p, {})[around[-1]] = None
        for child in module._modules.values():
            if child is not None:
                visit(child, around)

    visit(root, (root,))
    together = {}
    for p, modules in users.items():
        together.setdefault(tuple(modules), []).append(p)
    return [
        Plan(" + ".join(names[m] or "(model)" for m in modules), modules, parameters, len(modules) == 1 and modules[0] in outer)
        for modules, parameters in together.items()
    ]


def _choose(root, units, names):
    if units is None or isinstance(units, int):
        return set(_blocks(root, UNIT_BYTES if units is None else units))
    if callable(units) and not isinstance(units, (type, torch.nn.Module)):
        return {module for module in names if units(module)}
    chosen = set()
    for unit in [units] if isinstance(units, (type, torch.nn.Module)) else units:
        if isinstance(unit, type):
            found = [module for module in names if isinstance(module, unit)]
        elif unit in names:
            found = [unit]
        else:
            raise ValueError(f"units=: {type(unit).__name__} is no module of the model, and no class of modules")
        if not found:
            raise ValueError(f"units=: no module of the model is a {unit.__name__}")
        chosen.update(found)
    return chosen


def _blocks(root, least):
    """Blocks, and large modules where there are no blocks."""
    found = []

    def visit(module, is_block):
        if nbytes(module) < least or (nbytes(module) == 0):
            return
        container = isinstance(module, _CONTAINERS)
        if not container and module is not root and (is_block or not _has_blocks(module, least)):
            found.append(module)
            return
        for child in module.children():
            visit(child, container)

    visit(root, False)
    return found


def _has_blocks(module, least):
    return any(isinstance(m, _CONTAINERS) and nbytes(m) >= least for m in module.modules())


def nbytes(module):
    """Of its parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())
