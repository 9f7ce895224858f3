"""Pages of the C and C++ interface, made of the public headers and the comments in them.

    /* ---- Title ----          ## Title, and the rest of the comment as its text
    /* text */ declaration      ### its name, the text, the declaration
    // text, class X {...}      ### X, the text, what is public in it without the functions' bodies

A declaration begins at the left margin and ends at the next comment there or at an empty line.
"""
import re

NAME = re.compile(
    r"\b(rueda_\w+)\s*\((?!\*)"                      # a function of C
    r"|^#define (RUEDA_\w+)"
    r"|^\} (\w+);|^typedef struct \w+ (\w+);"
    r"|^(?:template.*\n(?:  requires.*\n)?)?(?:\[\[\w+\]\] )?(?:inline |constexpr )*(?:class|struct|enum class|concept|using) (?:\[\[\w+\]\] )?(\w+)"
    r"|^(?:template.*\n)?(?:\[\[\w+\]\] )?inline [^\n(]*?(\w+)(?:\(| =|;| *\n)"
    r"|^(?:template.*\n)?concept (\w+)"
    r"|^(?!typedef|struct|#)[a-zA-Z][\w:<>,&* ]*? (\w+)\(",
    re.MULTILINE)


def text_of(comment):
    """A comment without its marks, as Markdown: what is indented or aligned stays as it is."""
    lines = [re.sub(r"^(?:/\*|//| \*)(?: |$)", "", re.sub(r"\s*\*/$", "", line)).rstrip() for line in comment]
    out, block = [], []
    for line in [*lines, "end"]:
        if re.match(r"  +\S|Ownership: |[A-Z]\w+:  +\S" + (r"|[A-Z]\w+: +\S|$" if block else ""), line):
            block.append(line)
            continue
        if block:
            out += [*([""] if out and out[-1] else []), "```text", *"\n".join(block).rstrip().splitlines(), "```", ""]
            block = []
        if line or (out and out[-1]):
            out.append(re.sub(r"`[^`]*`|[<*]", lambda mark: {"<": "&lt;", "*": "\\*"}.get(mark[0], mark[0]), line))
    return "\n".join(out[:-1]).strip()


def pieces(lines):
    """(comment, code) of each declaration, both lists of lines."""
    comment, code, depth = [], [], 0
    for line in [*lines, ""]:
        opening = depth == 0 and re.match(r"/\*|//", line)
        inside = comment and not code and not line.startswith("//") and comment[0].startswith("/*") and not comment[-1].endswith("*/")
        if inside:
            comment.append(line)
        elif opening or (depth == 0 and not line):
            if code or (comment and not (opening and line.startswith("//"))):
                yield comment, code
                comment, code = [], []
            if opening:
                comment.append(line)
        else:
            code.append(line)
            bare = re.sub(r"//.*|/\*.*?\*/|\"(?:\\.|[^\"])*\"|'(?:\\.|[^'])'", "", line)
            depth += bare.count("{") + bare.count("(") - bare.count("}") - bare.count(")")
            if line.endswith("\\"):
                depth = max(depth, 0)
    if comment or code:
        yield comment, code


def without_bodies(code):
    """What a class promises: no bodies, no initialisers, nothing private."""
    out, at, parens, begin = [], 0, 0, 0
    code = re.sub(r"\n private:\n.*?(?=\n\};)", "", code, flags=re.DOTALL)
    while at < len(code):
        char = code[at]
        if code.startswith("//", at):
            end = code.find("\n", at)
            end = len(code) if end < 0 else end
            out.append(code[at:end])
            at = begin = end
            continue
        parens += (char == "(") - (char == ")")
        statement = code[begin:at]
        if char == "{" and parens == 0 and "(" in statement and not re.match(r"\s*(?:class|struct|enum|union)\b", statement):
            depth, end = 1, at + 1
            while depth:
                depth += (code[end] == "{") - (code[end] == "}")
                end += 1
            head = re.sub(r"\)( noexcept)?\s*:\s[^:].*$", r")\1", "".join(out)[-len(statement):], flags=re.DOTALL)
            out = ["".join(out)[:-len(statement)], head.rstrip(), ";"]
            at = begin = end
            continue
        out.append(char)
        at += 1
        if parens == 0 and char in ";{}":
            begin = at
    return "".join(out).replace("\n\n};", "\n};")


def page(title, headers, begin, end, language):
    """headers: (name, text) each; what stands between the lines `begin` and `end` of them is shown."""
    out = [f"# {title}\n"]
    for name, text in headers:
        top = re.match(r"/\*(?s:.*?)\*/|(?://.*\n)+", text)[0]
        out.append(f"## `{name}`\n\n{text_of(top.splitlines())}\n")
        body = text.split(begin, 1)[1].rsplit(end, 1)[0]
        body = re.sub(r"\nnamespace detail \{.*?\n\}  // namespace detail\n", "\n", body, flags=re.DOTALL)
        body = re.sub(r"(?m)^/\* clang-format \w+ \*/\n|^(?:extern|\#(?:if|else|endif|include)|namespace \w+ \{|\}  // namespace).*\n", "", body)
        for comment, code in pieces(body.splitlines()):
            section = re.match(r"/\* -+ (.*?) -+(?: \*/)?$", comment[0]) if comment else None
            if section:
                out.append(f"## {section[1]}\n")
                comment = ["/*" + comment[1][2:], *comment[2:]] if len(comment) > 1 else []
            shown = "\n".join(code).strip()
            shown = without_bodies(shown) if language == "cpp" else shown
            if shown.startswith("static_assert"):
                continue
            names = list(dict.fromkeys(next(filter(None, found)) for found in NAME.findall(shown)))
            if names and re.match(r"class|struct|template", shown):
                names = names[:1]
            if names:
                out.append("### " + ", ".join(f"`{name}`" for name in names) + "\n")
            if comment:
                out.append(text_of(comment) + "\n")
            if shown:
                out.append(f"```{language}\n{shown}\n```\n")
    return "\n".join(out)


def c_page(root):
    path = "bindings/c/include/rueda/rueda.h"
    return page("C", [("rueda/rueda.h", (root / path).read_text(encoding="utf-8"))], "#define RUEDA_API\n#endif\n", "#ifdef __cplusplus", "c")


def cpp_page(root):
    folder = root / "bindings/cpp/include/rueda"
    names = ["rueda.hpp", "request.hpp", "tensor.hpp", "buffer.hpp", "half.hpp", "error.hpp", "attention.hpp", "attention_plan.hpp"]
    headers = [(f"rueda/{name}", (folder / name).read_text(encoding="utf-8")) for name in names]
    return page("C++", headers, "inline namespace api1 {", "}  // namespace api1", "cpp")
