"""docs/design.md lists the files that carry a gradient in a steady step; this holds the list against the sources.

Each file of the table exists and defines the functions it names; each but the first is called from one above it; what
the named functions call is defined in the table's files or in those that the list below it says look on. "Calls" are
names followed by a parenthesis in the body of a function, "defines" the same names at a definition: types are not
resolved, so a name that many classes have tells little, and a name that one file has tells all.
"""
import ast
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_layers import without_comments_and_strings  # noqa: E402

PAGE = ROOT / "docs" / "design.md"
MOST_FILES = 25
PRODUCT = ("collectives", "runtime", "bindings/c")
PYTHON = "bindings/python/rueda"
CALL = re.compile(r"(?:(\w+)[ \n]+)?\b([A-Za-z_]\w*)\s*\(")
# What may stand before a call: another word makes it a declaration, "Waiting waiting(policy)".
BEFORE_A_CALL = {"", "return", "else", "co_await", "case", "new", "throw", "and", "or", "not", "in", "is", "if", "await",
                 "yield", "lambda", "assert", "while", "elif"}
# A definition: at the start of a line or indented in a class, a name, arguments, then a body.
DEFINITION = re.compile(r"(?:\b\w+::)*~?\b([a-z_]\w*)\s*\(")
# Calls of the standard library that functions of ours share a name with.
STANDARD = {"load", "store", "exchange", "lock", "unlock", "data", "front", "push_back", "find", "get", "size", "empty",
            "count", "begin", "span", "reserve", "at", "to_string", "min", "max", "assign", "clear"}
# The vocabulary: status, types, checks, sizes.
VOCABULARY = "collectives/base/"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "catch", "alignof", "decltype", "static_assert",
            "noexcept", "alignas", "requires", "assert"}


def closing(code, at):
    """The place behind the bracket that closes the one at `at`."""
    pairs = {"(": ")", "{": "}"}
    opened, closed, depth = code[at], pairs[code[at]], 0
    for place in range(at, len(code)):
        depth += (code[place] == opened) - (code[place] == closed)
        if depth == 0:
            return place + 1
    return len(code)


def cpp_functions(code):
    """{name: [(arguments, body)]} of the functions that are defined in a C++ text without comments."""
    found = {}
    for match in DEFINITION.finditer(code):
        name = match.group(1)
        before = code[: match.start()].rstrip(" ")
        if name in KEYWORDS or before.endswith((".", "->", "(", ",", "=", "!", "&&", "||", "return", "?")):
            continue
        behind = closing(code, match.end() - 1)
        # ") const override {", ") : member(...), ... {": up to the body; not a declaration or a call.
        tail = re.match(r"\s*(?:(?:const|override|noexcept|final)\s*)*(?:->\s*[\w:<>*& ]+)?\s*\{", code[behind:])
        if tail is not None:
            body = behind + tail.end() - 1
            found.setdefault(name, []).append((code[match.end() - 1 : behind], code[body : closing(code, body)]))
    return found


def calls(body):
    """The names that a body calls."""
    return {name for before, name in CALL.findall(body) if before in BEFORE_A_CALL} - KEYWORDS - STANDARD


def python_aliases(text):
    """{name: what it stands for}: of "_start, _wait = _lib.rueda_request_start, _wait_for" in a module."""
    found = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        targets, values = node.targets[0], node.value
        pairs = zip(targets.elts, values.elts) if isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple) \
            else [(targets, values)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
                found[target.id] = value.attr
    return found


def python_functions(text):
    """{name: [(arguments, body)]} of the functions and methods of a Python module."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(("", ast.get_source_segment(text, node)))
    return found


class Sources:
    """Functions by file; a header and the .cc of its name are one file, called as the page calls it."""

    def __init__(self, names):
        self._named = {self._stem(name): name for name in names}
        self.functions = {}
        self._includes = {}
        self._aliases = {}
        for folder in PRODUCT:
            for file in sorted((ROOT / folder).rglob("*")):
                if file.suffix in (".h", ".cc"):
                    text = file.read_text(encoding="utf-8")
                    self._add(file, cpp_functions(without_comments_and_strings(text)), INCLUDE.findall(text))
        for file in sorted((ROOT / PYTHON).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            self._add(file, python_functions(text), [])
            self._aliases[file.relative_to(ROOT).as_posix()] = python_aliases(text)

    @staticmethod
    def _stem(name):
        return re.sub(r"\.(h|cc|py)$", "", name)

    def _name(self, path):
        return self._named.get(self._stem(path), self._stem(path) + (".py" if path.endswith(".py") else ".cc"))

    def _add(self, file, functions, included):
        name = self._name(file.relative_to(ROOT).as_posix())
        self._includes.setdefault(name, set()).update(self._name(path) for path in included)
        of = self.functions.setdefault(name, {})
        for function, bodies in functions.items():
            of.setdefault(function, []).extend(bodies)

    def _seen_from(self, name):
        """The files whose headers it includes, directly or not; of a Python module, all."""
        if name.endswith(".py"):
            return {other for other in self.functions if other.endswith(".py")}
        seen, left = set(), [name]
        while left:
            now = left.pop()
            if now not in seen:
                seen.add(now)
                left += self._includes.get(now, ())
        return seen

    def definers(self, function, caller):
        return {name for name in self._seen_from(caller) if function in self.functions.get(name, ())}

    def bodies(self, name, function):
        """Of "perform", or of the one whose arguments have that word: "perform(EnterBatch)"."""
        function, _, word = function.rstrip(")").partition("(")
        return [body for arguments, body in self.functions[name].get(function, []) if word in arguments]

    def called_from(self, name, function):
        aliases = self._aliases.get(name, {})
        return {aliases.get(called, called) for body in self.bodies(name, function) for called in calls(body)}


def rows(text):
    """[(file, [functions])] of the table, and the files that look on."""
    table = text.split("<!-- steady path -->")[1].split("<!-- end of steady path -->")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].isdigit():
            found.append((cells[2].strip("`"), re.findall(r"`(\w+(?:\(\w+\))?)`", cells[3])))
    looking_on = text.split("<!-- looking on -->")[1].split("<!-- end of looking on -->")[0]
    return found, re.findall(r"`([\w/.-]+\.(?:h|cc|py))`", looking_on)


class SteadyPath(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path, cls.looking_on = rows(PAGE.read_text(encoding="utf-8"))
        cls.sources = Sources([name for name, _ in cls.path] + cls.looking_on)

    def test_it_is_short(self):
        self.assertGreater(len(self.path), 10, "the table was not found")
        self.assertLessEqual(len(self.path), MOST_FILES)
        names = [name for name, _ in self.path] + self.looking_on
        self.assertEqual(len(names), len(set(names)), "a file is listed twice")

    def test_each_file_exists_and_has_its_functions(self):
        for name, functions in self.path:
            with self.subTest(file=name):
                self.assertTrue((ROOT / name).is_file())
                self.assertTrue(functions)
                for function in functions:
                    self.assertTrue(self.sources.bodies(name, function), function)
        for name in self.looking_on:
            with self.subTest(file=name):
                self.assertTrue((ROOT / name).is_file())

    def test_each_file_is_reached_from_one_above_it(self):
        called = set()
        for number, (name, functions) in enumerate(self.path):
            with self.subTest(file=name):
                if number > 0:
                    here = {function.partition("(")[0] for function in functions}
                    self.assertTrue(called & here, f"no file above calls one of {functions}")
            for function in functions:
                called |= self.sources.called_from(name, function) 

    def test_what_they_call_is_in_the_list(self):
        known = {name for name, _ in self.path} | set(self.looking_on)
        for name, functions in self.path:
            for function in functions:
                for called in sorted(self.sources.called_from(name, function)):
                    definers = self.sources.definers(called, name)
                    if any(definer.startswith(VOCABULARY) for definer in definers):
                        continue
                    with self.subTest(file=name, function=function, calls=called):
                        self.assertTrue(not definers or definers & known,
                                        f"{called} is defined in {', '.join(sorted(definers))}")


class Reading(unittest.TestCase):
    """The checks see what they should."""

    def test_definitions_and_calls_are_told_apart(self):
        code = ("bool Runner::go(int n) const {\n  if (n > 0) return step(n);\n  other.far(n);\n}\n"
                "void declared(int);\nstruct A { int size() const { return count(); } };\n")
        functions = cpp_functions(code)
        self.assertEqual(set(functions), {"go", "size"})
        self.assertEqual(calls(functions["go"][0][1]), {"step", "far"})


if __name__ == "__main__":
    unittest.main()
