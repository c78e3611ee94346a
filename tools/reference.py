"""Writes docs/reference.md: the names of ``bedrockish`` and ``bedrockish.dbapi``, from signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator

import bedrockish
import bedrockish.dbapi
from bedrockish.errors import BedrockishError

HEAD = [
    "The names that `import bedrockish` and `import bedrockish.dbapi` offer.",
    "The error classes are in [errors](errors.md), the command line in [its own reference](cli.md).",
    "A blocking class has the methods of its trio twin, where their arguments are explained.",
]
DBAPI = ("connect", "Connection", "Cursor", "Row")


def reference_page(note: str) -> str:
    """Return the page; ``note`` says that it is written by a program."""
    lines = ["# Reference", "", note, "", *HEAD, "", "## bedrockish"]
    for name in sorted(bedrockish.__all__, key=str.lower):
        found = getattr(bedrockish, name)
        if not (inspect.isclass(found) and issubclass(found, BedrockishError)):
            lines += entry(f"bedrockish.{name}", found)
    lines += ["", "## bedrockish.dbapi", "", "PEP 249; see [DB-API](dbapi.md) for the differences from sqlite3."]
    for name in DBAPI:
        lines += entry(f"bedrockish.dbapi.{name}", getattr(bedrockish.dbapi, name))
    return "\n".join(lines) + "\n"


def entry(name: str, found: object) -> list[str]:
    """Return the lines of the section about a class or a function."""
    about = described(inspect.getdoc(found))
    if not inspect.isclass(found):
        return ["", f"### {name}", "", *signature(name.rpartition(".")[2], found), "", *about]
    lines = ["", f"### {name}", "", *about]
    for member, kind in members(found):
        lines += ["", f"#### {found.__name__}.{member}", ""]
        lines += [] if isinstance(kind, property) else [*signature(member, kind), ""]
        lines += described(inspect.getdoc(kind))
    return lines


def members(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the public members of a class and of its bases in this project, in the order of the source."""
    seen = set()
    for base in reversed([one for one in cls.__mro__ if one.__module__.startswith("bedrockish")]):
        for name, found in vars(base).items():
            if isinstance(found, classmethod | staticmethod):
                found = found.__func__
            if not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)):
                if name not in seen and inspect.getdoc(found):
                    yield name, getattr(cls, name) if inspect.isfunction(found) else found
                seen.add(name)


def signature(name: str, found: object) -> list[str]:
    """Return a signature as a block, without ``self`` and the packages' names."""
    assert callable(found)
    whole = inspect.signature(found)
    text = str(whole.replace(parameters=[one for one in whole.parameters.values() if one.name not in ("self", "cls")]))
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w*)", r"\1", text)
    text = re.sub(r"<class '([\w.]+)'>", lambda match: match[1].rpartition(".")[2], text).replace("NoneType", "None")
    is_async = inspect.iscoroutinefunction(found)
    return ["```text", f"{'await ' if is_async else ''}{name}{text}", "```"]


def described(doc: str | None) -> list[str]:
    """Return the lines of a docstring, its sections as lists."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")):
        head, _, rest = block.partition("\n")
        if head.startswith("Why so large:"):
            continue  # a reason for the project's checks, of no use to users
        if head in ("Args:", "Raises:", "Attributes:"):
            parts = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", rest, flags=re.MULTILINE)
            lines += [f"{head[:-1]}:", "", *(f"- `{part}`: {' '.join(said.split())}" for part, said in parts), ""]
        else:
            lines += [" ".join(block.split()).replace("``", "`"), ""]
    return [line.replace("``", "`") for line in lines[:-1]]
