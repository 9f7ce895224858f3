"""Models larger than a rank's memory: parameters without memory that get their first values module by module."""

import contextlib
import inspect

import torch


@contextlib.contextmanager
def no_init():
    """Parameters of modules that are made within have no memory (the device "meta").

    ``DistributedOptimizer(..., shard="parameters")`` gives them values. Modules that cannot initialise themselves again, for want
    of ``reset_parameters()``, keep the values of their constructor; buffers are as ever.
    """
    register = torch.nn.Module.register_parameter

    def register_parameter(module, name, param):
        register(module, name, param)
        if param is not None and _reset_of(module) is not None and not param.is_meta and not _is_lazy(param):
            p = module._parameters[name]
            meta = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device="meta")
            module._parameters[name] = torch.nn.Parameter(meta, requires_grad=p.requires_grad)

    torch.nn.Module.register_parameter = register_parameter
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _reset_of(module):
    """What gives a module's parameters their first values; None: it cannot."""
    for name in ("reset_parameters", "_reset_parameters"):
        function = getattr(module, name, None)
        if inspect.ismethod(function):
            return function
    return None


def make_real(root, outer, init):
    """Gives parameters on "meta" an object that is not, and returns what gives them values.

    Parameters
    ----------
    root : torch.nn.Module
    outer : set of modules
        That have units within.
    init : callable or None
        Of a module; instead of its ``reset_parameters()``.

    Returns
    -------
    (made, fill): ``made`` has each new parameter by the old one; ``fill(slots)`` gives values to the parameters of these slots,
    which are by parameter, and puts them there.
    """
    modules = _children_first(root)
    todo = [module for module in modules if any(t.is_meta for t in _own(module))]
    names = {module: name for name, module in root.named_modules()}
    for module in todo:
        if init is None and _reset_of(module) is None:
            raise ValueError(
                f"{names[module] or '(model)'!r} ({type(module).__name__}) has parameters or buffers on the device meta and no "
                "reset_parameters(): make it within hvd.no_init(), or say init=, a function that is called with each module"
            )
    made = {}
    for module in todo:
        for name, p in list(module._parameters.items()):
            if p is None or not p.is_meta:
                continue
            if p not in made:
                away = torch.zeros((), dtype=p.dtype).expand(p.shape)
                made[p] = torch.nn.Parameter(away, requires_grad=p.requires_grad)
            setattr(module, name, made[p])

    def fill(slots):
        waiting, done = set(made.values()), set()
        for module in todo:
            if module not in done:
                within = {module} if module in outer else set(module.modules())
                group = [m for m in modules if m in within and m in todo]
                done.update(group)
                _fill(group, waiting, slots, init)

    # A module that initialises what is in its children (as MultiheadAttention does) comes with these.
    number = {module: n for n, module in enumerate(modules)}
    todo.sort(key=lambda module: (min(number[m] for m in module.modules()), -number[module]))
    return made, fill


def _is_lazy(p):
    return torch.nn.parameter.is_lazy(p)


def _children_first(root):
    seen, order = set(), []

    def visit(module):
        if module not in seen:
            seen.add(module)
            for child in module.children():
                visit(child)
            order.append(module)

    visit(root)
    return order


def _own(module):
    yield from (p for p in module._parameters.values() if p is not None)
    yield from (b for b in module._buffers.values() if b is not None)


def _fill(modules, waiting, slots, init):
    """First values of the parameters of some modules, children first; only these are whole meanwhile."""
    shown = []
    for module in modules:
        for p in module._parameters.values():
            slot = slots.get(p)
            if slot is not None and slot not in shown:
                slot.show(torch.zeros(slot.shape, dtype=slot.form.dtype).as_strided_(slot.shape, _strides(slot.form)))
                shown.append(slot)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.zeros_like(buffer, device="cpu")
    with torch.no_grad():
        for module in modules:
            (init or (lambda m: _reset_of(m)()))(module)
    for slot in shown:
        if slot.parameter in waiting:
            waiting.discard(slot.parameter)
            slot.piece.put(slot, slot.parameter)
        slot.hide()


def _strides(form):
    """Where every element has a place of its own."""
    return torch.empty_like(form).stride()
