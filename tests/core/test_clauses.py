"""A comment in the code names each clause of the protocol once, where it is decided, and names no other clause."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLAUSE = re.compile(r"\b([VLPJT]\d+)(?=[:,])")


def told() -> list[str]:
    """Return the clauses of the page, in order."""
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    section = text.partition("## The clauses\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([VLPJT]\d+) \|", section, re.MULTILINE)


def named() -> Counter[str]:
    """Return how often the comments of the core name each clause as their subject."""
    found: Counter[str] = Counter()
    for path in (ROOT / "bedrockish/core").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            comment = line.partition("# ")[1:]
            for one in CLAUSE.finditer("".join(comment)) if comment[0] else ():
                found[one[1]] += 1
    return found


def test_each_clause_of_the_protocol_is_named_once_in_the_code() -> None:
    """A clause without a line is a claim; a line without a clause is an undocumented rule."""
    clauses = told()
    assert len(clauses) > 40
    assert len(clauses) == len(set(clauses))
    assert named() == Counter(clauses)


def test_clauses_are_numbered_without_a_gap() -> None:
    """A removed clause is removed from the numbering too, so that a reader finds every number."""
    for letter in "VLPJT":
        numbers = [int(clause[1:]) for clause in told() if clause[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))
