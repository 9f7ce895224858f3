"""DistributedOptimizer: averages gradients over ranks while backward is still running.

A hook on every parameter starts an asynchronous allreduce of its gradient as soon as that is
complete; ``step()`` waits for all of them and then lets the wrapped optimizer step.

    backward:  grad of layer n ready -> allreduce n starts | grad of n-1 ready -> ... | ...
    step():    missing gradients count as zero -> wait for all -> wrapped step

Without compression a dense, contiguous gradient is reduced in place, with no copy. With one rank
there are no hooks and nothing is reduced, unless others may come.

`_gradient` is the hook, `_in_place` its fast path, `_policies` how gradients are reduced, `_reduction`
one that is under way, `_distributed` the steps.
"""

from rueda.common import basics
from rueda.common.process_sets import global_process_set, require_registered
from rueda.torch import _owners, sharding
from rueda.torch._adasum_optimizer import _DistributedDelta
from rueda.torch._compress_reducer import reducer_for_optimizer
from rueda.torch._distributed import _Distributed, derived, has_peers
from rueda.torch._gradient_buffers import GradientBuffers
from rueda.torch._parameters import make_groups, name_parameters
from rueda.torch._policies import Settings
from rueda.torch.compression import Compression


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=Compression.none,
    backward_passes_per_step=1,
    op=basics.Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    sparse_as_dense=False,
    process_set=global_process_set,
    gradients_in_arena=None,
    shard=None,
    share=None,
    state_dtype=None,
    offload=None,
    module=None,
    units=None,
    init=None,
):
    """Wraps an optimizer so that ``step()`` uses gradients reduced over all ranks.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its parameters, options and state are shared with the result. Only the result may step.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        ``model.named_parameters()``; all of the optimizer's, each name once.
    compression
        One of `Compression`: what gradients travel as. An instance with a memory (``topk(0.01)``)
        belongs to one optimizer; it has ``state_dict`` and ``load_state_dict`` of its own.
    backward_passes_per_step : int
        Gradients of that many backward passes are summed locally before they are reduced.
    op : int
        Average or Sum (also Min, Max, Product). Adasum combines the ranks' steps, not their
        gradients (`rueda.torch._adasum_optimizer`): the wrapped optimizer steps each parameter with
        this rank's gradient, and ``step()`` adds the Adasum of what that changed.
    gradient_predivide_factor : float
        f: gradients are divided by f before the sum and multiplied by f / size after it.
    num_groups : int
        Deprecated form of ``groups``.
    groups : int or list of lists of parameters, optional
        Which gradients are reduced as one: a number of equal groups, or explicit groups.
    sparse_as_dense : bool
        Reduce sparse gradients as dense ones instead of gathering indices and values.
    process_set : ProcessSet
        The ranks whose gradients are reduced; the others step with their own.
    gradients_in_arena : bool or None
        Whether dense gradients lie in memory that the ranks of a host share (docs/memory.md). None: those
        that backward can be made to allocate there, at no cost. True: all, which are copied to a place of
        their own; ``p.grad`` is another tensor after the reduction starts than before it; not with Adasum.
        False: none. Without effect under compression.
    shard : None or str
        "state" or "gradients": each rank keeps the optimizer's state, or the reduced gradients too, of a
        share of every parameter, and updates that (docs/sharding.md). "parameters": the parameters
        too, which are gathered for the modules that use them. For optimizers that work element by
        element; not with compression, groups, Adasum.
    share : None or str
        "host", with ``shard``: the ranks of a host have one copy of the parameters.
    state_dtype : None or str
        "bf16" or "int8", with ``shard``: what the optimizer's state is kept as between steps.
    offload : None, str or os.PathLike
        A folder, with ``shard``: the optimizer's state lies in a file there between steps, which has no name. "cpu" says
        where the state of parameters on the CPU is already.
    module : torch.nn.Module, optional
        The model. For ``shard="parameters"``, where it has all of the optimizer's parameters; with the other
        stages modules then wait for their parameters, which arrive while forward runs, instead of the step for all.
    units : optional
        Of ``module``: what is gathered as one. None: the blocks of ModuleLists, Sequentials and ModuleDicts, and
        other modules, from 1 MB on; a number: from so many bytes on; a list of modules and classes of modules; a
        function that says whether a module is one.
    init : callable, optional
        Of a module: gives its parameters their first values, if they are on the device "meta". By default its
        ``reset_parameters()``.

    Returns
    -------
    An instance of a new class with the name of, and derived from, the optimizer's class.
    """
    if gradient_predivide_factor != 1.0 and op != basics.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    require_registered(process_set)
    if isinstance(optimizer, (_Distributed, sharding.Sharded)):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap the plain one")
    names = name_parameters(optimizer, named_parameters)
    if shard is not None:
        _refuse_with_shards(compression, groups or num_groups, gradients_in_arena)
        return sharding.wrap(
            optimizer,
            names,
            shard,
            share,
            op,
            process_set,
            gradient_predivide_factor,
            backward_passes_per_step,
            state_dtype=state_dtype,
            offload=offload,
            module=module,
            units=units,
            init=init,
        )
    if share is not None:
        raise ValueError("share= is for shard=\"state\" or shard=\"gradients\"")
    for name, given in (("state_dtype", state_dtype), ("offload", offload)):
        if given is not None:
            raise ValueError(f"{name}= is for shard=: what a rank does not share it keeps as its optimizer does")
    if module is not None or units is not None or init is not None:
        raise ValueError('module= is for shard=; units= and init= are for shard="parameters"')
    chosen = make_groups(groups, num_groups, names, optimizer)
    compression = reducer_for_optimizer(compression, op, chosen)
    kind = _kind_for(op, gradients_in_arena, process_set)
    lends = gradients_in_arena is None and compression is Compression.none and kind is _Distributed
    settings = Settings(
        op,
        1.0 / gradient_predivide_factor,
        gradient_predivide_factor,
        process_set,
        compression,
        _owners.prefix(names.values()),
    )
    buffers = gradients_in_arena and compression is Compression.none
    buffers = GradientBuffers() if buffers else None
    result = derived(optimizer, kind)
    result._setup(optimizer, names, settings, backward_passes_per_step, chosen, sparse_as_dense, buffers, lends)
    return result


def _refuse_with_shards(compression, groups, gradients_in_arena):
    for name, given in (
        ("compression", compression is not Compression.none),
        ("groups", groups),
        ("gradients_in_arena", gradients_in_arena),
    ):
        if given:
            raise ValueError(f"{name} is not for shard=; leave one of them out")


def _kind_for(op, gradients_in_arena, process_set):
    """The class that reduces gradients or, for Adasum on several ranks, steps."""
    if op != basics.Adasum or not has_peers(process_set):
        return _Distributed
    if gradients_in_arena:
        raise ValueError("gradients_in_arena is not for op=Adasum: gradients are not reduced there")
    return _DistributedDelta
