"""What the house is like, in figures: rooms, files, circles of imports, comments and assertions in the core.

``python -m tools.house [DIRECTORY]`` counts a checkout, this one if none is named; so one release is compared with
another. A room is a folder with Python files. A circle is a group of files that need each other to be imported; what is
imported only inside a function, or for a type checker, does not count. Comments are lines that have one, beside code or
alone; lines of code are those with code in them, without docstrings.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOTS = ("", "journal", "net")  # folders with packages of ours
PACKAGES = ("bedrockish", "bedrockish_journal", "bedrockish_net", "tools")
NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Counted:
    """A file: its lines of code, its lines with a comment, its assertions, and what of ours it imports."""

    code: int
    comments: int
    asserts: int
    imports: set[str]


def count(text: str) -> Counted:
    """Count one file."""
    tree = ast.parse(text)
    docs: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "# --")):
            comments.add(token.start[0])
        elif token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    asserts = sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
    return Counted(len(code - docs), len(comments), asserts, set(imported(tree)))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a file imports when it is imported itself: modules, and names in them as ``module.name``."""
    for node in tree.body:
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{name.name}" for name in names)
            case _:
                pass


def read(root: Path) -> dict[str, Counted]:
    """Return all files of a checkout that are in its packages, by module."""
    found = {}
    for base in ROOTS:
        for package in PACKAGES:
            for path in sorted((root / base / package).rglob("*.py")):
                parts = path.relative_to(root / base).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = count(path.read_text())
    return found


def circles(files: dict[str, Counted]) -> list[list[str]]:
    """Return circles of files that need each other; each is taken out before the next is looked for."""
    graph = {
        name: {other if other in files else other.rpartition(".")[0] for other in one.imports} & files.keys() - {name}
        for name, one in files.items()
    }
    found: list[list[str]] = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = sorted(set(error.args[1]))
            found.append(circle)
            for name in circle:
                graph[name] -= set(circle)
        else:
            return found


def main() -> None:
    """Print the figures."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    files = read(root)
    rooms = {name.rpartition(".")[0] or name for name, one in files.items() if one.code}
    core = [one for name, one in files.items() if name.startswith("bedrockish.core.")]
    code = sum(one.code for one in core)
    print(f"{len(rooms)} rooms, {len(files)} files, circles of imports: {circles(files) or 'none'}")
    print(f"core: {len(core)} files, {code} lines of code; in 100 of them:")
    print(f"  comments {100 * sum(one.comments for one in core) / code:.2f}")
    print(f"  asserts  {100 * sum(one.asserts for one in core) / code:.2f}")


if __name__ == "__main__":
    main()
