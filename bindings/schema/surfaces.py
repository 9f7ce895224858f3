"""The functions of the surfaces, as text: each from one line of the schema."""

from collectives import (
    ASYNC,
    ASYNC_IN_PLACE,
    BLOCKING,
    BLOCKING_OUT_OF_PLACE,
    ERRORS,
    EXCHANGE,
    IN_PLACE,
    OUT_OF_PLACE,
)
from text import call, define, docstring, fill, section

# What differs in docstrings.
NUMPY = {
    "tensor": "array",
    "a tensor": "an array",
    "tensors": "arrays",
    "class": "numpy.ndarray",
    "given": "array_like",
    "written": "contiguous and writable",
    "out": "",
}
TORCH = {
    "tensor": "tensor",
    "a tensor": "a tensor",
    "tensors": "tensors",
    "class": "torch.Tensor",
    "given": "torch.Tensor",
    "written": "contiguous",
    "out": ", and wants no gradient",
}

# Names and arguments.


def name_of(collective, form, grouped):
    return ("grouped_" if grouped else "") + collective.name + form


def forms_of(collective):
    """(form, grouped) of all its functions."""
    forms = [BLOCKING, IN_PLACE, ASYNC, ASYNC_IN_PLACE] if collective.in_place else [BLOCKING, ASYNC]
    return [(form, False) for form in forms] + [(form, True) for form in forms if collective.grouped]


def tensor_of(grouped):
    return "tensors" if grouped else "tensor"


def arguments_of(collective, form, grouped):
    """Those behind the tensor."""
    absent = {BLOCKING: (), ASYNC: (BLOCKING_OUT_OF_PLACE,)}
    absent = absent.get(form, (BLOCKING_OUT_OF_PLACE, OUT_OF_PLACE))
    return [a for a in collective.arguments if a.forms not in absent and (a.grouped or not grouped)]


def names_but(collective, *absent):
    """Names of its arguments but for some, in the schema's order."""
    return [a.name for a in collective.arguments if a.name not in absent]


def out_of(collective, form, grouped):
    """What stands for ``out`` in a call that starts it."""
    if form in (IN_PLACE, ASYNC_IN_PLACE):
        return "True" if grouped else "tensor"
    return "out" if collective.has("out") and not grouped else "None"


def start(collective, form, grouped):
    """(function, arguments) of the call that starts it, and waits in blocking forms."""
    way = "blocking." if form in (BLOCKING, IN_PLACE) else "collectives."
    out = out_of(collective, form, grouped)
    items = [tensor_of(grouped), *names_but(collective, "compression", "out")]
    return way + name_of(collective, "", grouped), items + [out] * (out != "None")


def parameters(collective, form, grouped):
    arguments = arguments_of(collective, form, grouped)
    return [tensor_of(grouped), *(a.name + (a.default and f"={a.default}") for a in arguments)]


# Docstrings.


def whole_docstring(collective, words):
    """Of the blocking form: all there is to say about the operation."""
    parts = [fill(collective.notes, 4)] if collective.notes else []
    if words is TORCH:
        parts.append(fill(f"Differentiable: the gradient is {collective.gradient.words}.", 4))
    lines, names = [f"    tensor : {words['given']}", fill(collective.tensor, 8)], []
    for argument in arguments_of(collective, BLOCKING, False):
        names.append(argument.name)
        if argument.doc:
            kind = argument.kind.format_map(words)
            lines.append(f"    {', '.join(names)}{kind and ' : '}{kind}")
            lines.append(fill(argument.doc.format_map(words), 8))
            names = []
    parts.append(section("Parameters", lines))
    result = fill(collective.result.format_map(words), 8)
    parts.append(section("Returns", [f"    {words['class']}", result]))
    errors = {}
    for error, when in (*ERRORS, *collective.errors):
        errors.setdefault(error, []).append(when.format_map(words))
    lines = [f"    {error}\n{fill(' '.join(when), 8)}" for error, when in errors.items()]
    return docstring(collective.summary.format_map(words), *parts, section("Raises", lines))


def short_docstring(collective, form, grouped, words):
    """Of the other forms: which function they are like."""
    plain = name_of(collective, BLOCKING, grouped)
    if form == BLOCKING:
        several = f"several {words['tensors']}"
        return docstring(f"`{collective.name}` of {several} as one operation; returns a tuple.")
    if form == IN_PLACE:
        same = f"{'a tuple of ' * grouped}the same {words[tensor_of(grouped)]}"
        return docstring(f"`{plain}` in place; returns {same}, which must be {words['written']}.")
    plain += "_" * (form == ASYNC_IN_PLACE)
    if collective.extra:
        both = f"``(output, {collective.extra[0]})``"
        return docstring(f"Starts `{plain}`; returns a handle, whose result is always {both}.")
    return docstring(f"Starts `{plain}`; returns a handle for `synchronize`.")


def function(collective, form, grouped, words, *body):
    whole = form == BLOCKING and not grouped
    text = (
        whole_docstring(collective, words)
        if whole
        else short_docstring(collective, form, grouped, words)
    )
    return define(
        name_of(collective, form, grouped), parameters(collective, form, grouped), text, *body
    )


# Parts of functions.


def given_back(collective, function_name, items, indent):
    """Returns what a call gives; of alltoall the splits only to who gave some."""
    if not collective.extra:
        return [call("return ", function_name, items, indent=indent)]
    last = " " * indent + "return output if splits is None else (output, received)"
    return [call("output, received = ", function_name, items, indent=indent), last]


def wait(collective, form, grouped):
    """The way that always goes."""
    return given_back(collective, *start(collective, form, grouped), 4)


def through_compression(collective, grouped, function_name, tensor):
    """The call for tensors that travel as something else."""
    if not collective.has("compression"):
        return []
    given = [a.name for a in arguments_of(collective, BLOCKING, grouped)]
    given = [f"{name}={name}" for name in given if name not in ("compression", "out")]
    items = [name_of(collective, "", grouped), "compression", tensor, *["out"] * (not grouped)]
    line = call("return ", function_name, [*items, *given], indent=8)
    return ["    if compression is not NONE:", line]


def short_way(collective, form):
    """The call for what has come before in the same form."""
    if not collective.again:
        return short_way_to_receive(collective)
    fields = names_but(collective, "average", "name", "compression", "process_set", "out")
    fields = ["AVERAGE if op is None else op" if name == "op" else name for name in fields]
    out = out_of(collective, form, False)
    key = 'getattr(process_set, "key", None)'
    items = [collective.code, "name", "tensor", out, *fields, key]
    if not collective.has("average"):
        line = call("result = ", "run_again", items)
        return [line, "    if result is not None:", "        return result"]
    line = call("result = ", "run_again", items, indent=8)
    last = ["        if result is not None:", "            return result"]
    return ["    if average is None:", line, *last]


def short_way_to_receive(collective):
    """The same where the result is the library's memory, whose size only it knows beforehand."""
    fields = names_but(collective, "splits", "name", "compression", "process_set", "out")
    absent = [f"{name} is None" for name in ("out", "splits") if collective.has(name)]
    indent = 8 if absent else 4
    items = [collective.code, "name", "tensor", *fields, 'getattr(process_set, "key", None)']
    lines = [f"    if {' and '.join(absent)}:"] if absent else []
    lines.append(call("result = ", "receive_again", items, indent=indent))
    return [*lines, " " * indent + "if result is not None:", " " * indent + "    return result"]


# Functions.


def asynchronous(collective, form, grouped, words):
    line = call("return ", *start(collective, form, grouped))
    return function(collective, form, grouped, words, line)


def blocking_numpy(collective, form, grouped):
    body = []
    if form == BLOCKING:
        tensor = "map(np.asarray, tensors)" if grouped else "np.asarray(tensor)"
        compressed = "compressed_group" if grouped else "compressed"
        body += through_compression(collective, grouped, compressed, tensor)
    body += [] if grouped else short_way(collective, form)
    body += wait(collective, form, grouped)
    return function(collective, form, grouped, NUMPY, *body)


def known_to_torch(collective, module, grouped):
    """(function, arguments) of the form that autograd, or the graph being compiled, knows."""
    names = [tensor_of(grouped), *names_but(collective, "average", "compression", "out")]
    if collective.has("average"):
        names = ["reduce_op(op, average)" if name == "op" else name for name in names]
    return f"{module}.{name_of(collective, '', grouped)}", names


def blocking_torch(collective, form, grouped):
    body = []
    if form == BLOCKING:
        compressed = "compressed_group" if grouped else "compressed"
        if collective.has("average"):  # rueda's own compressors are for allreduce
            compressed = name_of(collective, "", grouped).replace("allr", "compressed_allr")
        body += through_compression(collective, grouped, compressed, tensor_of(grouped))
    body += ["    tensors = tuple(tensors)"] if grouped else []
    body += ["    if is_compiling():", *in_graph(collective, form, grouped)]
    body += [] if grouped else short_way(collective, form)
    if form == BLOCKING:
        wants = "want_gradient(tensors)" if grouped else "wants_gradient(tensor)"
        out = "out is None and " * (out_of(collective, form, grouped) == "out")
        known = known_to_torch(collective, "_autograd", grouped)
        body += [f"    if {out}{wants}:", *given_back(collective, *known, 8)]
    body += wait(collective, form, grouped)
    return function(collective, form, grouped, TORCH, *body)


def in_graph(collective, form, grouped):
    """What a graph that is being compiled gets."""
    known = known_to_torch(collective, "graph", grouped)
    takes_out = out_of(collective, form, grouped) == "out"
    if form == IN_PLACE and grouped:
        last = "        return tuple(map(graph.write_back, tensors, results))"
        return [call("results = ", *known, indent=8), last]
    if form == IN_PLACE:
        return [call("result = ", *known, indent=8), "        return graph.write_back(tensor, result)"]
    lines = given_back(collective, *known, 8)
    if takes_out and collective.extra:
        lines.insert(1, "        output = graph.give(output, out, tensor)")
    elif takes_out:
        lines = [call("result = ", *known, indent=8), "        return graph.give(result, out, tensor)"]
    return lines


def message_functions(message, words):
    """Both forms of what passes between two ranks."""
    named = ["tensor", message.peer, "tag=0"]
    started = f"{message.name}(tensor, {message.peer}, tag)"
    text = docstring(message.summary.format_map(words))
    yield define(
        message.name, named, text, f"    {'return ' * message.returns}blocking.{started}"
    )
    text = docstring(f"Starts `{message.name}`; returns a handle for `synchronize`.")
    yield define(message.name + "_async", named, text, f"    return collectives.{started}")


EXCHANGE_PARAMETERS = ["tensor", "dst", "src", "*", "like=None", "tag=0"]


def exchange_functions(words):
    """Both forms of what goes to one rank while something comes from another."""
    summary = (
        "Sends {a tensor} to rank ``dst`` while it receives, and returns, what rank ``src`` sends: "
        "as `send` and `recv` at once, for rings and exchanges, where ranks that all send first would "
        "wait for each other."
    )
    lines = [
        f"    like : {words['class']}, optional",
        fill(LIKE[words["tensor"]], 8),
    ]
    text = docstring(summary.format_map(words), section("Parameters", lines))
    line = f"blocking.{EXCHANGE}(tensor, dst, src, like, tag)"
    yield define(EXCHANGE, EXCHANGE_PARAMETERS, text, f"    return {line}")
    text = docstring(f"Starts `{EXCHANGE}`; returns a handle for `synchronize`.")
    line = line.replace("blocking.", "collectives.")
    yield define(EXCHANGE + "_async", EXCHANGE_PARAMETERS, text, f"    return {line}")


LIKE = {
    "array": "Of the shape and dtype that come; values are not looked at. Without, those of the array.",
    "tensor": "Of the shape and dtype that come, on any device (``meta`` too); values are not looked at. "
    "Without, those of the tensor. What comes is where the tensor is. There is no gradient: a tensor that "
    "requires one is a RuntimeError.",
}
