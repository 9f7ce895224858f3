"""The operations of torch.compile's graphs, as text: each collective from one line of the schema.

    _allgather_backward      the gradients of its tensors, as an operation of lists
    _allgather_gradients     hands that what the forward has kept
    _allgather               the forward, registered with both (`rueda.torch._operations`)
    allgather                what the public function calls inside of compiled code
"""

from collectives import GATHERED, ITSELF, RECEIVED, SAME, SHARE
from surfaces import name_of, names_but, tensor_of
from text import call, define

# Names of arguments inside of graphs, where they are numbers.
_SPELLED = {"process_set": "set_id", "prescale_factor": "prescale", "postscale_factor": "postscale"}
# What the library gets for them.
_HANDED = {**_SPELLED, "process_set": "registered(set_id)", "average": "None"}


def parts_of(collective):
    if collective.gradient != ITSELF:
        yield backward(collective)
    for grouped in (False, True)[: 1 + collective.grouped]:
        yield gradients(collective, grouped)
        yield forward(collective, grouped)
        yield inside(collective, grouped)


def hidden(collective, grouped):
    """(type, name) of arguments on which only the form of the result depends."""
    if collective.rows == SHARE:
        return [("SymInt[]" if grouped else "SymInt", "rows")]
    return [("Tensor?", "splits"), ("int", "size")] if collective.rows == RECEIVED else []


def arguments_of(collective):
    """(type, name) of the others: where from, name and process set, what is computed."""
    found = {a.name: (a.graph, _SPELLED.get(a.name, a.name)) for a in collective.arguments}
    order = "root_rank name process_set op prescale_factor postscale_factor"
    return [found[name] for name in order.split() if name in found]


def kept(collective):
    """The last result of a forward that needs one for its backward."""
    return {GATHERED: "firsts", RECEIVED: "received"}.get(collective.rows)


def spelled(arguments):
    return ", ".join(f"{kind} {name}" for kind, name in arguments)


def backward(collective):
    arguments = [("Tensor[]", "grads")]
    arguments += [("SymInt[]", "rows")] * (collective.rows != SAME)
    arguments += [("Tensor", kept(collective))] * bool(kept(collective))
    arguments += arguments_of(collective)
    names = [name for _, name in arguments]
    handed = {"set_id": "registered(set_id)", "firsts": "firsts.tolist()"}
    items = [handed.get(name, name) for name in names]
    fake = "all_like" if collective.rows == SAME else "all_with_rows"
    # Slices are views; an operation's results must be tensors of their own.
    result = "[grad.clone() for grad in mine]" if collective.rows == GATHERED else "list(mine)"
    return "\n".join([
        f'@operation(\n    "({spelled(arguments)}) -> Tensor[]",\n    {fake},\n)',
        define(
            f"_{collective.name}_backward",
            names,
            call("mine = ", f"_autograd.{collective.name}_gradients", items),
            f"    return {result}",
        ),
    ])  # fmt: skip


def gradients(collective, grouped):
    name = "_" + name_of(collective, "", grouped)
    if collective.gradient == ITSELF:
        again = f"{name}({'grads' if grouped else 'grads[0]'}, backward_name(name), *rest)"
        body = [
            "    name, *rest = ctx.arguments",
            f"    return selected(ctx, grads) or {again if grouped else f'[{again}]'}",
        ]
    else:
        items = ["grads", *["ctx.rows"] * (collective.rows != SAME)]
        items += ["*ctx.saved_tensors"] * bool(kept(collective))
        body = [call("return ", f"_{collective.name}_backward", [*items, "*ctx.arguments"])]
    return define(f"{name}_gradients", ["ctx", "grads"], *body)


def forward(collective, grouped):
    name, first = name_of(collective, "", grouped), tensor_of(grouped)
    first_type = "Tensor[]" if grouped else "Tensor"
    arguments = [(first_type, first), *hidden(collective, grouped), *arguments_of(collective)]
    handed = [_HANDED.get(n, n) for n in names_but(collective, "compression", "out")]
    items, started = [first, *handed], f"blocking.{name}"
    if collective.rows == GATHERED:
        started = "blocking.allgather_with_places"
        items = [first if grouped else "[tensor]", *handed, str(grouped)]
        result, body = "results, firsts = ", ["    return [*results, torch.tensor(firsts)]"]
    elif collective.rows == RECEIVED:
        check = "    require_compiled_for(received.shape[0], size)"
        result, body = "output, received = ", [check, "    return [output, received]"]
    elif collective.rows == SHARE and grouped:
        check = "    require_compiled_for([output.shape[0] for output in outputs], list(rows))"
        result, body = "outputs = ", [check, "    return list(outputs)"]
    elif collective.rows == SHARE:
        check = "    require_compiled_for(output.shape[0], rows)"
        result, body = "output = ", [check, "    return output"]
    elif grouped:
        result, body = "results = ", ["    return list(results)"]
    else:
        result, body = "return ", []
    body.insert(0, call(result, started, items))
    if collective.again and not grouped:
        body = again(collective) + body
    fake = {SAME: "like", SHARE: "with_rows", GATHERED: "gathered", RECEIVED: "exchanged"}
    options = ["all_" * grouped + fake[collective.rows], f"_{name}_gradients"]
    options += [f"hidden={len(hidden(collective, grouped))}"] * bool(hidden(collective, grouped))
    options += ["kept=True"] * bool(kept(collective))
    return "\n".join([
        f'@collective(\n    "{spelled(arguments)}",\n    {", ".join(options)},\n)',
        define(f"_{name}", [name for _, name in arguments], *body),
    ])  # fmt: skip


def again(collective):
    """The short way for what has come before."""
    fields = [name for _, name in arguments_of(collective) if name not in ("name", "set_id")]
    items = [collective.code, "name", "tensor.detach()", "None", *fields, "registered(set_id).key"]
    line = call("result = ", "run_again", items)
    return [line, "    if result is not None:", "        return result"]


def inside(collective, grouped):
    name, first = name_of(collective, "", grouped), tensor_of(grouped)
    names = names_but(collective, "average", "compression", "out")
    items = [name for _, name in hidden(collective, grouped) + arguments_of(collective)]
    body = ["    set_id = id_in_graph(process_set)"]
    if collective.gradient == ITSELF:
        body += selection(name, grouped)
    if collective.rows == SHARE and grouped:
        body.append("    rows = [rows_of_this_rank(tensor, process_set) for tensor in tensors]")
    elif collective.rows == SHARE:
        body.append("    rows = rows_of_this_rank(tensor, process_set)")
    elif collective.rows == RECEIVED:
        body.append("    splits, size = as_tensor(splits), process_set.size()")
    result = f"_{name}({', '.join([f'list({first})' if grouped else first, *items])})"
    if collective.rows == GATHERED:
        result += "[:-1]" if grouped else "[0]"
    body.append(f"    return tuple({result})" if grouped else f"    return {result}")
    known = {**_SPELLED, "process_set": "process_set"}
    return define(name, [first, *(known.get(name, name) for name in names)], *body)


def selection(name, grouped):
    """Of Min, Max and Product the factors have gradients too."""
    rest = "name, set_id, op, 1.0, 1.0"
    if not grouped:
        return [
            "    if op in SELECTIONS and wants_gradient(tensor):",
            f"        result = _{name}(scaled(tensor, prescale), {rest})",
            "        return scaled(result, postscale)",
        ]
    return [
        "    if op in SELECTIONS and want_gradient(tensors):",
        "        wide = [scaled(tensor, prescale) for tensor in tensors]",
        f"        results = _{name}(wide, {rest})",
        "        return tuple(scaled(result, postscale) for result in results)",
    ]
