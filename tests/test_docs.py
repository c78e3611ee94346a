"""The documentation holds together: titles, links, and the parts that are generated from the code."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.test_tidy import ROOT, name, tracked
from tools.docs import GENERATED

# The forms of .github begin with metadata for GitHub.
PAGES = [path for path in tracked() if path.suffix == ".md" and ".github" not in path.parts]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """Return the text without its code blocks, in which ``#`` is a comment and brackets are not links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_every_page_has_one_title() -> None:
    """Each has one ``#`` heading, at the top."""
    wrong = [
        name(page)
        for page in PAGES
        if not page.read_text().startswith("# ") or len(re.findall(r"^# ", prose(page.read_text()), re.MULTILINE)) != 1
    ]
    assert not wrong


def test_next_release_has_at_most_40_short_entries_in_the_changelog() -> None:
    """A reader who upgrades reads all of them; details belong to the pages and the commits."""
    entries = (ROOT / "CHANGELOG.md").read_text().split("## [")[1].split("\n- ")[1:]
    assert len(entries) <= 40
    assert not [entry[:60] for entry in entries if len(entry) > 350]


def test_relative_links_resolve() -> None:
    """A link to a file leads to a file that is in the tree, and its anchor to a heading."""
    files, wrong = set(tracked()), []
    for page in PAGES:
        for target in LINK.findall(prose(page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            exists = there in files or (there.is_dir() and any(there in f.parents for f in files))
            if not exists or (anchor and anchor not in anchors(there.read_text())):
                wrong.append(f"{name(page)} -> {target}")
    assert not wrong


def test_code_files_that_the_documentation_names_exist() -> None:
    """A file of the code that a page names by its path, or by the end of it, exists."""
    files = {f"/{name(path)}" for path in tracked()}
    wrong = [
        f"{name(page)} -> {file}"
        for page in PAGES
        if page.name != "CHANGELOG.md"  # it tells what was
        for file in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text())
        if file != "env.py"  # a file of Alembic
        and not any(there.endswith(f"/{file}") for there in files)
    ]
    assert not wrong


def test_names_on_the_page_for_contributors_are_in_their_files() -> None:
    """Each "`NAME` in `FILE`" of docs/extending.md is true."""
    named = re.findall(r"`(\w+)` in `([\w/]+\.py)`", (ROOT / "docs" / "extending.md").read_text())
    assert len(named) > 20
    assert not [(word, file) for word, file in named if not re.search(rf"\b{word}\b", (ROOT / file).read_text())]


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    """A page of the documentation can be found from its index."""
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if name(page).startswith("docs/")]
    assert not [page for page in pages if page != "README.md" and f"({page}" not in index]


@pytest.mark.parametrize("page", sorted(GENERATED))
def test_generated_pages_are_current(page: str) -> None:
    """Run ``python -m tools.docs`` after changing the command line or an error class."""
    # In a process of its own: click keeps what a command's help was like when another test first asked for it.
    command = [sys.executable, "-c", f"from tools.docs import render; print(render({page!r}), end='')"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert (ROOT / page).read_text() == done.stdout


@cache
def literals() -> str:
    """Return the string literals of the code, one on each line, with ``…`` for each inserted value."""
    found: list[str] = []
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("bedrockish", "journal"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("page", ["audit", "erasure", "journal", "spark"])
def test_messages_that_a_page_explains_are_in_the_code(page: str) -> None:
    """A reader searches the page for the message that a command has printed."""
    section = (ROOT / "docs" / f"{page}.md").read_text().partition("## What can go wrong\n")[2].partition("\n## ")[0]
    bold = re.findall(r"^- (.+?): ", section, re.MULTILINE)
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)[1:]
    own = [said for said in bold if "(Spark's own)" not in said]
    messages = [one for said in own for one in re.findall(r"\*\*(.+?)\*\*", said)]
    messages += [one for row in rows for one in row.split(", ")]
    assert len(messages) >= 3
    text = literals()
    parts = [re.split(r"[\s:;]*(?:…|\b(?:[A-E]\d*|17)\b|letter\.txt|No space left)[\s:;]*", one) for one in messages]
    assert not [part for one in parts for part in one if len(part) > 3 and part.removeprefix("or ") not in text]


@pytest.mark.parametrize(
    "word",
    [
        *("MVCC", "snapshot isolation", "optimistic concurrency control", "linearizable", "failover", "split brain"),
        *("group commit", "retention", "closed timestamp", "resolved timestamp", "read set", "write set"),
        *("replication slot", "point-in-time recovery", "change data capture", "idempotency key", "write skew"),
    ],
)
def test_glossary_translates_the_words_of_other_systems(word: str) -> None:
    """A reader who knows another database searches for its words; the glossary gives those of bedrockish."""
    rows = [line.partition(" | ") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()]
    assert [said for elsewhere, _, said in rows if word.lower() in elsewhere.lower() and said]


def test_each_row_of_the_comparison_names_the_test_that_proves_it() -> None:
    """The rows about architecture, limits and age need none."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", (ROOT / "docs" / "compared.md").read_text(), re.MULTILINE)
    without = []
    for what, ours in rows[2:]:
        found = re.findall(r"`(tests/[\w/]+\.py)`", ours)
        assert all((ROOT / path).is_file() for path in found), (what, found)
        without += [] if found else [what]
    assert without == ["architecture", "more data than one machine holds", "years at work elsewhere"]


def test_examples_of_all_pages_can_share_a_cluster() -> None:
    """Two pages that make a table of the same name give it the same columns, so that a reader may run both.

    Each tutorial begins with a cluster of its own.
    """
    places = [page for page in PAGES if not page.name.startswith("tutorial")] + list(ROOT.glob("examples/*/app.py"))
    found: dict[str, dict[tuple[str, ...], str]] = {}
    for place in places:
        for table, columns in re.findall(
            r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)\(([^\n]*?)\)[\"`;]", place.read_text()
        ):
            names = tuple(one.split()[0] for one in re.sub(r"\([^)]*\)", "", columns).split(","))
            found.setdefault(table, {})[names] = place.name
    assert len(found) > 8
    assert not {table: pages for table, pages in found.items() if len(pages) > 1}
