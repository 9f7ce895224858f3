"""One gradient of an optimizer: the hook on its parameter, and how far its reduction has come.

No dictionary has parameters as keys on the way of every step: PyTorch hashes a tensor in Python. And
nothing here keeps a parameter or the optimizer alive: a parameter holds its hooks where the garbage
collector does not look, so what a hook holds lives as long as the parameter.

    optimizer ----> Gradient ----> Step, Policy        the optimizer's: they know nothing of parameters
                     ^   : weak
       its hook      |   v
    parameter -------+  parameter
"""

import weakref

import torch

from rueda import _marks
from rueda.torch._lent_memory import window
from rueda.torch._outside import outside_graphs
from rueda.torch._ranges import around, is_on

_TOO_OFTEN = (
    "Gradients were computed more than backward_passes_per_step times before call to "
    "step(). Increase backward_passes_per_step to accumulate gradients locally."
)


class Step:
    """What the gradients of one optimizer know about the step under way."""

    __slots__ = (
        "has_discarded",
        "is_partial",
        "lends",
        "passes",
        "pending",
        "reduces",
        "settled",
        "synchronized",
    )

    def __init__(self, passes):
        self.passes = passes  # backward passes whose gradients are summed
        self.lends = False  # backward allocates gradients in shared memory
        self.pending = []  # reductions, in the order in which they were started
        self.is_partial = False  # a gradient may wait for more passes, or for its group
        self.has_discarded = False  # gradients of a loss that was not this optimizer's
        self.reduces = True  # False within no_sync()
        # How the gradients came to be reduced: by synchronize(), or because something needed them
        # reduced before step(), which then does not warn.
        self.synchronized = False
        self.settled = False

    def set_passes(self, passes, gradients):
        self.passes = passes
        for gradient in gradients:
            gradient.passes_left = passes

    def discard(self, reduction):
        """Forgets one whose gradients the script has thrown away; peers do the same."""
        self.has_discarded = True
        reduction.wait()
        self.pending.remove(reduction)
        reduction.let_go()
        for gradient in reduction.gradients:
            gradient.forget()

    def forget(self, gradients):
        """What is under way, or was begun. ``gradients``: all of the optimizer."""
        pending, self.pending, self.has_discarded = self.pending, [], False
        for reduction in pending:
            reduction.let_go()
        if self.is_partial:
            self.is_partial = False
            for gradient in gradients:
                gradient.forget()


class Gradient:
    """The gradient of one parameter.

    Parameters
    ----------
    p : torch.nn.Parameter
    owner : optimizer
        Knows the parameter's name.
    step : Step
    policy : Policy
        How it is reduced, alone or as a member of ``group``.

    Attributes
    ----------
    reduction
        That is under way, or None.
    passes_left : int
        Backward passes until it is reduced.
    in_place : InPlace or None
        The fast path, once it has come the ordinary way.
    is_ready : bool
        It is complete, and its group waits for others.
    buffer : GradientBuffer or None
        Where it is brought before it is reduced.
    spare : torch.Tensor or None
        Memory for its next result, where that is kept apart from it (`_guarded`).
    is_sparse : bool or None
        What the ranks have agreed on; None while no rank has had a gradient.
    """

    __slots__ = (
        "__weakref__",
        "_accumulated",
        "_owner",
        "_parameter",
        "buffer",
        "group",
        "in_place",
        "is_ready",
        "is_sparse",
        "passes_left",
        "policy",
        "reduction",
        "spare",
        "step",
    )

    def __init__(self, p, owner, step, policy):
        self._parameter = weakref.ref(p)
        self._owner = weakref.ref(owner)
        self.passes_left = step.passes
        self._accumulated = None  # weak reference to the gradient of several passes
        self.step = step
        self.policy = policy
        self.group = None
        self.reduction = None
        self.in_place = None
        self.is_ready = False
        self.buffer = None
        self.spare = None
        self.is_sparse = None

    @property
    def parameter(self):
        return self._parameter()

    @property
    def name(self):
        return self._owner()._parameter_names[self._parameter()]

    @outside_graphs
    def complete(self, p):
        """The hook: backward has finished ``p.grad``. Most gradients take the first lines only."""
        step, in_place = self.step, self.in_place
        if step.lends and not window.is_open:
            window.open()
        if (
            in_place is not None
            and self.reduction is None
            and step.passes == 1
            and step.reduces
            and not _marks.on
            and not is_on()
            and in_place.start(p)
        ):
            step.pending.append(in_place)  # first: what is pending is let go after an interrupt
            self.reduction = in_place
            step.synchronized = step.settled = False
        elif is_on():
            with around("rueda:gradient", (p.grad,)):
                self._complete(p, step)
        else:
            self._complete(p, step)

    def _complete(self, p, step):
        if _marks.on:
            _marks.gradient(torch.autograd.Variable._execution_engine)
        reduction = self.reduction
        if reduction is not None:
            # With create_graph the sum of old and new is a new tensor, so it tells nothing.
            if reduction.is_wanted() or torch.is_grad_enabled():
                raise AssertionError(_TOO_OFTEN)
            step.discard(reduction)
        step.synchronized = step.settled = False
        if not step.reduces:
            return
        before, self._accumulated = self._accumulated, None
        if before is not None and before() is not p.grad:
            self.passes_left = step.passes  # the script has begun anew
        if self.passes_left <= 0:
            raise AssertionError(_TOO_OFTEN)
        step.is_partial = True
        self.passes_left -= 1
        if self.passes_left == 0:
            self.start()
        else:
            self._accumulated = weakref.ref(p.grad)

    def start(self):
        """Starts the reduction, or notes the gradient until its group is complete."""
        if self.group is not None:
            self.group.complete(self)
        else:
            reduction = self.policy.start([self], self.name)
            self.step.pending.append(reduction)
            self.reduction = reduction

    def has_computed(self):
        """Whether a backward pass of this step has reached it."""
        return self.reduction is not None or self.is_ready or self._accumulated is not None

    def forget(self):
        """How far it has come towards a reduction."""
        self._accumulated = None
        if self.is_ready:
            self.group.forget(self)
        self.passes_left = self.step.passes


class Group:
    """Gradients that are reduced as one."""

    def __init__(self, gradients):
        self._gradients = gradients
        self._ready = 0  # how many of them are
        for gradient in gradients:
            gradient.group = self

    def complete(self, gradient):
        self._ready += not gradient.is_ready
        gradient.is_ready = gradient.step.is_partial = True
        members = self._gradients
        if self._ready == len(members):
            first = members[0]
            reduction = first.policy.start(members, "group." + first.name)
            first.step.pending.append(reduction)
            for member in members:
                member.reduction = reduction
                self.forget(member)

    def forget(self, gradient):
        gradient.is_ready = False
        self._ready -= 1


def on_gradient_complete(p, call):
    """Calls ``call(p)`` each time backward has finished ``p.grad``; returns what ends that."""
    if hasattr(p, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
        return p.register_post_accumulate_grad_hook(call).remove
    # The node that accumulates into p.grad lives as long as somebody holds it.
    accumulate = p.expand_as(p).grad_fn.next_functions[0][0]
    parameter = weakref.ref(p)
    hook = accumulate.register_hook(lambda *ignored: call(parameter()))

    def remove(_held=accumulate):
        hook.remove()

    return remove
