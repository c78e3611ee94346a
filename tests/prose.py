"""The rules of writing that a program can check: ``python -m tests.prose PATH ...`` lists the texts that break one.

A text is a docstring, a block of comments, the name of a test, or a line of a page. The patterns know words, not
meaning: a hit is a sentence to rewrite with a named thing as its subject.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RULES = {
    "a clause as the subject": re.compile(
        r"(?:^|[.:;!?|] |[-*] )(?:\*\*)?(?:Who|Whoever|What|Whatever|Whichever|Whose)\b(?![^.?!]*\?)", re.MULTILINE
    ),
    "a clause as the object": re.compile(
        r"\b(?:of|for|by|to|with|from|than|that|and|or|as|in) (?:who|whoever|what|whatever)\b"
        r"(?! (?:to|if|else|about)\b)"
    ),
    "'is no' for 'is not'": re.compile(r"\b(?:is|are|was|were) (?:no|none)\b(?! (?:longer|more|other|such|need|way))"),
    "'there is no' for an action": re.compile(
        r"(?:^|[.:;] )There (?:is|are) (?:no|nothing|nobody|something)\b", re.MULTILINE
    ),
    "an actor without a name": re.compile(r"\b(?:[Nn]obody|[Ss]omebody|[Ee]verybody|[Aa]nybody|one another)\b"),
    "an old word": re.compile(
        r"\b(?:anew|amid|meanwhile|by then|thereby|whereby|beside(?! the point)|astray|in vain|to be had)\b"
    ),
    "a person for a program": re.compile(r"\b(?:he|him|his|himself)\b"),
    "a fragment": re.compile(r"\A(?:One|Something|Those|These|It|All|The same|Of|That|Whether)\b[^.]{0,40}\.?\Z"),
    "a comma before 'that'": re.compile(r"\w, that (?:is|are|was|were|has|have)\b"),
}
TEST_NAME = re.compile(
    r"test_(?:\w+_)?(?:(?:who|whoever|what)_|nobody|somebody|everybody|anybody)|test_(?:it|they|those|these|where)_"
)


STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*''', re.DOTALL
)


class Fault(NamedTuple):
    """A text that breaks a rule."""

    line: int
    rules: str
    text: str


def documented(source: str) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the module and all classes and functions of a source."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        waiting.extend(one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt | ast.excepthandler))


def code_texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each docstring, block of comments and test name of a source: its line, the text, whether it is a name."""
    for node in documented(source):
        said = ast.get_docstring(node)
        if said:
            yield node.body[0].lineno, said, False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name, True
    block: list[tuple[int, str]] = []
    for line, comment in comments(source):
        if block and line != block[-1][0] + 1:
            yield block[0][0], " ".join(text for _, text in block), False
            block = []
        block.append((line, comment.lstrip("#: ").strip()))
    if block:
        yield block[0][0], " ".join(text for _, text in block), False


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment of a source and its line; in a small part of the time that ``tokenize`` takes."""
    line, at = 1, 0
    for found in STRING_OR_COMMENT.finditer(source):
        if found[0].startswith("#"):
            line, at = line + source.count("\n", at, found.start()), found.start()
            yield line, found[0]


def page_texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each line of a Markdown page that is not in a block of code, with its number."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip():
            yield number, line.strip(), False


def count_and_faults(path: Path) -> tuple[int, list[Fault]]:
    """Return the number of texts in a file, and those that break a rule."""
    source, count, faults = path.read_text(encoding="utf-8"), 0, list[Fault]()
    for line, text, is_test in page_texts(source) if path.suffix == ".md" else code_texts(source):
        count += 1
        if is_test:
            broken = ["a test name that is not an assertion"] if TEST_NAME.match(text) else []
        else:
            broken = [name for name, pattern in RULES.items() if pattern.search(text)]
        if broken:
            faults.append(Fault(line, ", ".join(broken), " ".join(text.split())))
    return count, faults


def main() -> None:
    """List the faults in files and folders."""
    for place in map(Path, sys.argv[1:]):
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in (".py", ".md"):
                for fault in count_and_faults(path)[1]:
                    print(f"{path}:{fault.line}: {fault.rules}: {fault.text[:160]}")


if __name__ == "__main__":
    main()
