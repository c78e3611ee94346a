"""The outcomes of a suite's tests, and the expected ones: a checked-in file for each suite.

A file lists every test that does not pass, with the reason, and the number of tests that pass. So a test that begins to
fail, or to pass, or that is removed, makes a difference, which a review shows.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Outcomes = dict[str, tuple[str, str]]  # test -> passed, failed or skipped, and why
PASSED, FAILED, SKIPPED, REFUSED = "passed", "failed", "skipped", "refused"
KINDS = (PASSED, REFUSED, FAILED, SKIPPED)
PLACE = Path(__file__).resolve().parent / "expected"
UNEXPLAINED = "NO REASON YET"
HEAD = (
    "# Written by `python -m tools.compliance {name} --write`; the reasons are written by hand, and kept.\n"
    "# What is not named here passes. refused: by design. failed: otherwise. skipped: by the suite itself.\n"
)


def read_record(path: Path) -> Outcomes:
    found = json.loads(path.read_text()).items()
    return {test: (outcome, reason.encode(errors="backslashreplace").decode()) for test, (outcome, reason) in found}


def count(outcomes: Outcomes) -> dict[str, int]:
    found = Counter(outcome for outcome, _ in outcomes.values())
    return {kind: found[kind] for kind in (PASSED, SKIPPED, FAILED)}


@dataclass
class Expected:
    release: str  # the release with which they were observed
    passed: int  # how many tests pass
    others: Outcomes = field(default_factory=dict)  # test -> refused, failed or skipped, and the reason

    def counts(self) -> dict[str, int]:
        """Return the number of tests that passed, are refused, failed or are skipped."""
        found = Counter(kind for kind, _ in self.others.values())
        return {PASSED: self.passed, **{kind: found[kind] for kind in KINDS[1:]}}

    def reasons(self) -> Counter[tuple[str, str]]:
        """Return the number of tests for each kind and reason."""
        return Counter(self.others.values())


def path_of(name: str) -> Path:
    """Return the path of a suite's file of expectations."""
    return PLACE / f"{name}.txt"


def read_expected(path: Path) -> Expected:
    """Read a file of expectations.

    Raises:
        ValueError: a line is unknown.
    """
    found = Expected("", 0)
    heading: tuple[str, str] | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(": ")
        if line.startswith("== "):
            kind, _, reason = line[3:].partition(": ")
            heading = kind, reason
        elif heading is not None:
            found.others[line.strip()] = heading
        elif word == "release":
            found.release = rest
        elif word == PASSED:
            found.passed = int(rest)
        else:
            raise ValueError(f"{path}, line {number}: unknown line {line!r}")
    return found


def write_expected(path: Path, expected: Expected) -> None:
    lines = [HEAD.format(name=path.stem), f"release: {expected.release}"]
    lines.append(f"{PASSED}: {expected.passed}")
    for kind, reason in sorted(expected.reasons(), key=lambda one: (KINDS.index(one[0]), one[1])):
        names = sorted(test for test, why in expected.others.items() if why == (kind, reason))
        lines += ["", f"== {kind}: {reason}", *names]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def renewed(old: Expected | None, outcomes: Outcomes, release: str) -> Expected:
    """Return the outcomes as the new expectations, with the reasons that the old expectations give."""
    new = Expected(release, count(outcomes)[PASSED])
    for test, (outcome, said) in outcomes.items():
        before = old.others.get(test) if old else None
        if outcome == SKIPPED:
            new.others[test] = (SKIPPED, before[1] if before and before[0] == SKIPPED else said or UNEXPLAINED)
        elif outcome == FAILED:
            given = before is not None and before[0] in (REFUSED, FAILED)
            new.others[test] = before if given and before else (FAILED, f"{UNEXPLAINED}: {said}")
    return new


def part_of(expected: Expected, outcomes: Outcomes) -> Expected:
    others = {test: why for test, why in expected.others.items() if test in outcomes}
    return Expected(expected.release, len(outcomes) - len(others), others=others)


def differences(expected: Expected, outcomes: Outcomes) -> Iterator[str]:
    """Yield a line for each unexpected outcome."""
    for test in sorted({*expected.others, *outcomes}):
        before = expected.others.get(test, (PASSED, ""))[0]
        now, said = outcomes.get(test, ("gone", ""))
        if before == PASSED and now == "gone":
            continue
        if now != (FAILED if before == REFUSED else before):
            yield f"- {before:8} {test}\n+ {now:8} {test}" + (f"  ({said})" if said else "")
    passed = count(outcomes)[PASSED]
    if passed != expected.passed:
        yield f"- {expected.passed} passed\n+ {passed} passed"
