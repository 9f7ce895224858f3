"""The pages of the site, as a folder that mkdocs renders: README.md, docs/, the README of every folder, the references.

The folder has the shape of the repository, so links between pages stay as they are. What a link leads to besides pages and pictures:

    a folder            its README; without one, only the text is left
    any other file      a page of its own below sources/, which shows it
"""
import os
import re
import shutil
from pathlib import Path, PurePosixPath

from docs_lib import headers

# Modules of Python by page of reference/; mkdocstrings reads them without importing them.
PYTHON = {
    "python": ["rueda.numpy", "rueda.common.exceptions", "rueda.timeline"],
    "pytorch": ["rueda.torch.mpi_ops", "rueda.torch.optimizer", "rueda.torch.functions", "rueda.torch.compression", "rueda.torch.data",
                "rueda.torch.elastic", "rueda.torch.memory", "rueda.torch.metrics", "rueda.torch.replicas", "rueda.torch.schedule",
                "rueda.torch.sync_batch_norm"],
    "attention": ["rueda.attention", "rueda.attention.modules"],
    "data": ["rueda.data"],
}
TITLES = {"python": "Python: rueda", "pytorch": "Python: rueda.torch", "attention": "Python: rueda.attention",
          "data": "Python: rueda.data"}
LANGUAGES = {".py": "python", ".cc": "cpp", ".h": "cpp", ".hpp": "cpp", ".c": "c", ".sh": "bash"}
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("attention", "bindings", "collectives", "deploy", "examples", "launcher", "proto", "runtime", "scripts", "tests")
# Code, in which no link is one, or a link.
LINK = re.compile(r"^( *)```(?s:.*?)^\1```|`[^`\n]*`|(!?)\[([^\[\]]*)\]\(([^)\s]+)\)", re.MULTILINE)


def pages(root):
    """Paths of what becomes a page, from the root."""
    below = [path for folder in FOLDERS for path in (root / folder).rglob("README.md")]
    return [*TOP, *sorted(path.relative_to(root).as_posix() for path in [*(root / "docs").glob("*.md"), *below])]


def relative(page, target):
    return os.path.relpath(target, PurePosixPath(page).parent.as_posix())


def for_the_site(root, page, text, sources):
    """The page with links to what the site has, and lists that Python-Markdown sees; sources gains what they show."""
    def link(found):
        _, picture, label, target = found.groups()
        if not target or picture or re.match(r"[a-z]+:|#", target):
            return found[0]
        path, _, part = target.partition("#")
        where = os.path.normpath(PurePosixPath(page).parent / path)
        if (root / where).is_dir():
            where = f"{where}/README.md"
            if not (root / where).exists():
                return label
        elif not where.endswith((".md", ".svg")):
            sources.add(where)
            where = f"sources/{where}.md"
        return f"[{label}]({relative(page, where)}{'#' + part if part else ''})"

    # A list needs an empty line before it.
    return re.sub(r"(?m)^(?![-*] |\d+\. |\s|\||$)(.*)\n(?=(?:- |\* |1\. ))", r"\1\n\n", LINK.sub(link, text))


def write(root, target):
    """Makes the folder; gives the pages' paths in it."""
    root, target = Path(root), Path(target)
    shutil.rmtree(target, ignore_errors=True)
    made, sources = {}, set()
    for page in pages(root):
        made[page] = for_the_site(root, page, (root / page).read_text(encoding="utf-8"), sources)
    for source in sorted(sources):
        ending = PurePosixPath(source).suffix
        text = (root / source).read_text(encoding="utf-8")
        made[f"sources/{source}.md"] = f"# {source}\n\n``````{LANGUAGES.get(ending, 'text')}\n{text}\n``````\n"
    for name, modules in PYTHON.items():
        made[f"reference/{name}.md"] = f"# {TITLES[name]}\n\n" + "\n".join(f"::: {module}\n" for module in modules)
    made["reference/c.md"] = headers.c_page(root)
    made["reference/cpp.md"] = headers.cpp_page(root)
    for page, text in made.items():
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text(text, encoding="utf-8")
    for picture in (root / "docs").rglob("*.svg"):
        copy = target / picture.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copy)
    return sorted(made)
