"""What a lowered JAX program asks of rueda."""

import re


def calls_of(program, *args):
    """For each call of librueda_xla.so in it, the names of its members."""
    return calls_in(program.lower(*args).as_text())


def calls_in(text):
    """The same of a program's text."""
    found = re.findall(r'members = "((?:[^"\\]|\\.)*)"', text)
    lines = [re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), each).splitlines() for each in found]
    return [[line.split(" ", 10)[10] for line in each] for each in lines]
