"""Python text: lines of at most 100 columns, docstrings, files."""

import textwrap

WIDTH = 100


def fold(begin, items, end, indent=0):
    """``begin item, item end`` in one line, or with the items in lines of their own, filled."""
    pad = " " * indent
    whole = pad + begin + ", ".join(items) + end
    if len(whole) <= WIDTH:
        return whole
    lines = fill(", ".join(item.replace(" ", "\0") for item in items) + ",", indent + 4)
    return f"{pad}{begin}\n{lines}\n{pad}{end}".replace("\0", " ")


def fill(text, indent):
    """A paragraph."""
    pad = " " * indent
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=pad,
        subsequent_indent=pad,
        break_long_words=False,
        break_on_hyphens=False,
    )


def call(before, function, items, after="", indent=4):
    """A statement: ``before function(items) after``."""
    return fold(f"{before}{function}(", items, f"){after}", indent)


def define(name, parameters, *body):
    return "\n".join([fold(f"def {name}(", parameters, "):"), *body])


def docstring(summary, *parts):
    """``parts``: paragraphs, indented already."""
    first = f'    """{summary}'
    if not parts and len(first) + 3 <= WIDTH:
        return first + '"""'
    return "\n\n".join([fill(first.strip(), 4), *parts]) + '\n    """'


def section(title, lines):
    """Of a docstring of NumPy's kind."""
    return "\n".join([f"    {title}", f"    {'-' * len(title)}", *lines])


def listing(name, items):
    """``name = [items]``"""
    return fold(f"{name} = [", items, "]")


def quoted(names):
    return [f'"{name}"' for name in sorted(names)]


def module(head, parts):
    """A file: what it begins with, then its functions."""
    return "\n\n\n".join([head, *parts]) + "\n"
