#!/usr/bin/env python3
"""Writes the C header's constants, structs and functions for ctypes: rueda.h -> _abi.py.

    bindings/schema/ffi.py            writes bindings/python/rueda/_abi.py
    bindings/schema/ffi.py --check    says whether it is what the header gives now

Reads the part of C that rueda.h is written in: enums, ``#define``d numbers and texts, opaque types,
structs (arrays, pointers, pointers to functions, several names in one line), types of functions and
prototypes over any number of lines. Anything else is an error with the header's line: a guess about
an ABI would be a crash in somebody's training.

What a C type becomes:

======================================  ============================================================
``int32_t``, ``double``, ...            the number of that size
``const char*``, ``char*``              ``c_char_p``
a type without fields, and ``T*`` of it ``c_void_p``: a handle
a struct, and ``T*`` of it              its class, and ``POINTER`` to it
``int32_t*``, ``int64_t*``, ...         ``POINTER``: an array, or ``byref`` of one number
``void*``, ``float*``, bytes            ``c_void_p``: an address
``T**``                                 ``POINTER(c_void_p)``
======================================  ============================================================
"""

import pathlib
import re
import sys
import textwrap
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "bindings" / "c" / "include" / "rueda" / "rueda.h"
OUTPUT = ROOT / "bindings" / "python" / "rueda" / "_abi.py"

_NUMBERS = {
    "char": "c_char",
    "int8_t": "c_int8",
    "uint8_t": "c_uint8",
    "int16_t": "c_int16",
    "uint16_t": "c_uint16",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    "int": "c_int",
}
# Pointers to these are addresses of data; pointers to other numbers are arrays of ctypes.
_DATA = ("void", "int8_t", "uint8_t", "float", "double")
# How the header's conditions come out for who reads it as C.
_CONDITIONS = {"ifndef RUEDA_RUEDA_H_": True, "ifdef __cplusplus": False, "if defined(__GNUC__)": True}
_MARKER = "RUEDA_API"  # in front of a prototype

_TOKEN = re.compile(r"\s+|[A-Za-z_]\w*|\d\w*|<<|[{}()\[\];,*=-]")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0|[1-9]\d*)[uUlL]*")


class HeaderError(Exception):
    """The header has something that this program does not understand."""


class Token(NamedTuple):
    text: str
    line: int


class Type(NamedTuple):
    """``depth`` stars behind a name; or a type of functions, with their result and parameters."""

    name: str
    depth: int
    result: "Type" = None
    parameters: tuple = ()


class Field(NamedTuple):
    name: str
    type: Type
    count: str  # of an array: its extent; else ""


class Header(NamedTuple):
    """What a header declares, each in the order in which it stands there."""

    constants: dict  # "" and names of enums: {constant: value}
    types: dict  # name: [Field] of a struct, None of an opaque type, Type of functions
    functions: dict  # name: (result, [Type])


def read(path):
    return Parser(path.read_text(), path.name).parse()


class Parser:
    def __init__(self, text, name="rueda.h"):
        self._file = name
        self._header = Header({"": {}}, {}, {})
        self._tokens = list(self._tokenize(self._preprocess(_without_comments(text))))
        self._at = 0

    def parse(self):
        while self._at < len(self._tokens):
            self._declaration()
        return self._header

    # Lines of the preprocessor.

    def _preprocess(self, text):
        """The text without them; defines of numbers and texts become constants."""
        kept, conditions, continued = [], [], ""
        for number, line in enumerate(text.split("\n"), 1):
            line, continued = continued + line, ""
            if line.lstrip().startswith("#") and line.endswith("\\"):
                continued = line[:-1] + " "
                kept.append("")
                continue
            wanted = all(conditions)
            if not line.lstrip().startswith("#"):
                kept.append(line if wanted else "")
                continue
            kept.append("")
            word, _, rest = " ".join(line.strip("# \t").split()).partition(" ")
            if word in ("if", "ifdef", "ifndef"):
                condition = f"{word} {rest}"
                if condition not in _CONDITIONS:
                    self._fail(number, f"unknown condition #{condition}")
                conditions.append(_CONDITIONS[condition])
            elif word == "else" and conditions:
                conditions[-1] = not conditions[-1]
            elif word == "endif" and conditions:
                conditions.pop()
            elif word == "define":
                if wanted:
                    self._define(number, rest)
            elif word != "include":
                self._fail(number, f"unknown line #{word}")
        if conditions:
            self._fail(number, "an #if without its #endif")
        return "\n".join(kept)

    def _define(self, number, rest):
        name, _, value = rest.partition(" ")
        value = value.strip()
        if name.endswith("_INIT") or name in (_MARKER, "RUEDA_RUEDA_H_"):
            return  # initialisers are for C; the others say nothing to Python
        if not re.fullmatch(r"RUEDA_[A-Z0-9_]+", name):
            self._fail(number, f"unknown define {name}")
        if re.fullmatch(r'"[^"\\]*"', value):
            self._add_constant(number, "", name, value[1:-1])
            return
        parser = Parser(value.strip("()"), f"{self._file}:{number}: {name}")
        self._add_constant(number, "", name, parser._number())
        if parser._peek():
            self._fail(number, f"{name} is neither a number nor a text: {value}")

    def _add_constant(self, line, group, name, value):
        if any(name in known for known in self._header.constants.values()):
            self._fail(line, f"{name} is defined twice")
        self._header.constants[group][name] = value

    # Tokens.

    def _tokenize(self, text):
        for number, line in enumerate(text.split("\n"), 1):
            at = 0
            while at < len(line):
                match = _TOKEN.match(line, at)
                if match is None:
                    self._fail(number, f"unexpected {line[at]!r}")
                if not match.group().isspace():
                    yield Token(match.group(), number)
                at = match.end()

    def _peek(self, ahead=0):
        at = self._at + ahead
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _take(self, *expected):
        """The next token, which must be one of those given, or a name."""
        if self._at >= len(self._tokens):
            self._fail(self._line(), "the header ends in the middle of a declaration")
        token = self._tokens[self._at]
        if token.text not in expected if expected else not re.match(r"[A-Za-z_]", token.text):
            wanted = " or ".join(map(repr, expected)) or "a name"
            self._fail(token.line, f"expected {wanted}, found {token.text!r}")
        self._at += 1
        return token.text

    def _fail(self, line, why):
        raise HeaderError(f"{self._file}:{line}: {why}")

    def _line(self):
        return self._tokens[min(self._at, len(self._tokens) - 1)].line if self._tokens else 1

    # Declarations.

    def _declaration(self):
        word = self._take("typedef", _MARKER)
        if word == _MARKER:
            self._prototype()
        elif self._peek() == "enum":
            self._enum()
        elif self._peek() == "struct":
            self._struct()
        else:
            self._callback()

    def _enum(self):
        self._take("enum")
        name = self._take()
        if name in self._header.constants:
            self._fail(self._line(), f"{name} is declared twice")
        self._header.constants[name] = {}
        self._take("{")
        value = -1
        while self._peek() != "}":
            line, constant, value = self._line(), self._take(), value + 1
            if self._peek() == "=":
                self._take("=")
                value = self._number()
            self._add_constant(line, name, constant, value)
            if self._peek() != "}":
                self._take(",")
        self._take("}")
        self._take(name)
        self._take(";")

    def _number(self):
        sign = -1 if self._peek() == "-" and self._take("-") else 1
        match = _INTEGER.fullmatch(self._peek())
        if match is None:
            self._fail(self._line(), f"expected a number, found {self._peek()!r}")
        self._take(self._peek())
        value = sign * int(match.group(1), 0)
        if self._peek() == "<<":
            self._take("<<")
            value <<= self._number()
        return value

    def _struct(self):
        self._take("struct")
        line, name = self._line(), self._take()
        if self._peek() != "{":  # typedef struct x x;
            self._take(name)
            self._take(";")
            self._add_type(line, name, None)
            return
        self._take("{")
        fields = []
        while self._peek() != "}":
            fields += self._fields()
        self._take("}")
        self._take(name)
        self._take(";")
        self._add_type(line, name, fields)

    def _add_type(self, line, name, what):
        if name in self._header.types:
            self._fail(line, f"{name} is declared twice")
        self._header.types[name] = what

    def _fields(self):
        """Of one line: ``const float *a, *b;``, ``char text[64];`` or ``void (*f)(int32_t);``"""
        name = self._base()
        while True:
            depth = self._stars()
            if self._peek() == "(":
                field = self._pointer_to_function(Type(name, depth))
                yield Field(field[0], field[1], "")
            else:
                called = self._take()
                yield Field(called, self._known(Type(name, depth)), self._extent())
            if self._take(",", ";") == ";":
                return

    def _extent(self):
        if self._peek() != "[":
            return ""
        self._take("[")
        constants = {n: v for group in self._header.constants.values() for n, v in group.items()}
        extent = constants[self._take()] if self._peek() in constants else self._number()
        self._take("]")
        if self._peek() == "[":
            self._fail(self._line(), "an array of more than one dimension")
        return str(extent)

    def _callback(self):
        line = self._line()
        result = Type(self._base(), self._stars())
        name, kind = self._pointer_to_function(result)
        self._take(";")
        self._add_type(line, name, kind)

    def _pointer_to_function(self, result):
        self._take("(")
        self._take("*")
        name = self._take()
        self._take(")")
        return name, Type("", 0, self._known(result), tuple(self._parameters()))

    def _prototype(self):
        result = self._known(Type(self._base(), self._stars()))
        line, name = self._line(), self._take()
        if name in self._header.functions:
            self._fail(line, f"{name} is declared twice")
        self._header.functions[name] = (result, self._parameters())
        self._take(";")

    def _parameters(self):
        self._take("(")
        if self._peek() == ")":
            self._fail(self._line(), "() without void")
        if self._peek() == "void" and self._peek(1) == ")":
            self._take("void")
            self._take(")")
            return []
        found = []
        while True:
            kind = Type(self._base(), self._stars())
            if self._peek() == "(":
                found.append(self._pointer_to_function(kind)[1])
            else:
                if self._peek() not in (",", ")"):
                    self._take()  # its name
                found.append(self._known(kind))
            if self._take(",", ")") == ")":
                return found

    def _base(self):
        """The name in front of the stars; ``const`` says nothing about the ABI."""
        while self._peek() == "const":
            self._take("const")
        if self._peek() == "struct":
            self._take("struct")
        name = self._take()
        while self._peek() == "const":
            self._take("const")
        return name

    def _stars(self):
        depth = 0
        while self._peek() in ("*", "const"):
            depth += self._take("*", "const") == "*"
        return depth

    def _known(self, kind):
        """The type itself, if it has a form for ctypes."""
        types = self._header.types
        if kind.name not in _NUMBERS and kind.name not in types and kind.name != "void":
            self._fail(self._line(), f"unknown type {kind.name}")
        if kind.depth == 0 and types.get(kind.name, kind) is None:
            self._fail(self._line(), f"{kind.name} by value, whose fields are not known")
        return kind


def _without_comments(text):
    """Comments become blanks, so that every line keeps its number."""

    def blank(match):
        return match.group() if match.group().startswith('"') else re.sub(r"[^\n]", " ", match.group())

    return re.sub(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', blank, text, flags=re.DOTALL)


# The Python file.


def class_name(name):
    """rueda_attention_spec -> AttentionSpec"""
    return "".join(part.capitalize() for part in name.split("_")[1:])


def spelled(kind, types):
    """A type as Python text, for arguments and fields."""
    if kind.result is not None:
        parts = [result_of(kind.result, types), *(spelled(p, types) for p in kind.parameters)]
        return f"ctypes.CFUNCTYPE({', '.join(parts)})"
    if kind.depth == 0:
        return _alias(_NUMBERS[kind.name]) if kind.name in _NUMBERS else class_name(kind.name)
    if kind.name == "char" and kind.depth == 1:
        return _alias("c_char_p")
    if kind.depth >= 2:
        return "_pointer(_void_p)"
    if kind.name in _DATA or types.get(kind.name, kind) is None:
        return _alias("c_void_p")
    return f"_pointer({spelled(Type(kind.name, 0), types)})"


def result_of(kind, types):
    return "None" if kind == Type("void", 0) else spelled(kind, types)


def _alias(name):
    """c_int32 -> _int32"""
    return name[1:]


_HEAD = '''# Generated by bindings/schema/ffi.py from bindings/c/include/rueda/rueda.h; do not edit.
"""Constants, structs and functions of the C ABI, for ctypes. `rueda._ffi` loads the library."""

import ctypes
from ctypes import POINTER as _pointer
{aliases}


class _Answer(ctypes.Structure):
    """A struct with room for text, which the library fills in: it is made with its size alone."""

    def __init__(self):
        super().__init__(ctypes.sizeof(self))

'''


def _filled(begin, items, end, indent):
    """``begin item, item, end`` in lines of at most 100 columns."""
    whole = begin + ", ".join(items) + end
    if len(whole) <= 100:
        return [whole]
    text = textwrap.fill(
        ", ".join(item.replace(" ", "\0") for item in items) + ",",
        100,
        initial_indent=indent + "    ",
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [begin, text.replace("\0", " "), indent + end]


def _struct(name, fields, types):
    has_text = any(field.type.name == "char" and field.count for field in fields)
    is_answer = has_text and fields[0].name == "struct_size"
    yield f"\n\nclass {class_name(name)}({'_Answer' if is_answer else 'ctypes.Structure'}):"
    yield f'    """{name}"""\n'
    items = []
    for field in fields:
        count = f" * {field.count}" if field.count else ""
        items.append(f'("{field.name}", {spelled(field.type, types)}{count})')
    yield from _filled("    _fields_ = [", items, "]", "    ")


def generate(header):
    """The text of _abi.py."""
    types, body = header.types, []
    for group, constants in header.constants.items():
        body.append(f"\n# {group or 'Defines'}")
        for name, value in constants.items():
            text = f'"{value}"' if isinstance(value, str) else value
            body.append(f"{name[len('RUEDA_'):]} = {text}")
    for name, what in types.items():
        if isinstance(what, Type):
            body.append(f"\n\n{class_name(name)} = {spelled(what, types)}  # {name}")
        elif what is not None:
            body += _struct(name, what, types)
    body.append("\n\n# name: (result, arguments)\nFUNCTIONS = {")
    for name, (result, parameters) in header.functions.items():
        arguments = [spelled(kind, types) for kind in parameters]
        body += _filled(f'    "{name}": ({result_of(result, types)}, [', arguments, "]),", "    ")
    body.append("}")
    text = "\n".join(body) + "\n"
    kinds = sorted({*_NUMBERS.values(), "c_char_p", "c_void_p"})
    used = [kind for kind in kinds if re.search(rf"(?<!\w){_alias(kind)}\b", text)]
    aliases = "\n".join(f"from ctypes import {kind} as {_alias(kind)}" for kind in used)
    return _HEAD.replace("{aliases}", aliases) + text


def main():
    text = generate(read(HEADER))
    if sys.argv[1:] == ["--check"]:
        if not OUTPUT.exists() or OUTPUT.read_text() != text:
            sys.exit(f"{OUTPUT.relative_to(ROOT)} is not what rueda.h gives: run bindings/schema/ffi.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
