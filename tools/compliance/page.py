"""Returns the tables of docs/compliance.md, from the files of expectations."""

from collections.abc import Callable
from functools import partial

from tools.compliance.outcomes import KINDS, PASSED, REFUSED, SKIPPED, Expected, path_of, read_expected
from tools.compliance.suites import SUITES

# Most skipped tests are for other databases: reasons with fewer tests than this share a row of the table.
SKIPPED_AT_LEAST = 10


def tables() -> dict[str, Callable[[], list[str]]]:
    """Return the tables, by their markers: of all suites, and of each suite with a file of its own."""
    named = {suite.expectations for suite in SUITES.values()}
    return {"suites": _suites, **{name: partial(_reasons, name) for name in named}}


def _suites() -> list[str]:
    lines = ["| suite | release | passed | refused | failed | skipped |", "| --- " * 6 + "|"]
    for suite in SUITES.values():
        expected = read_expected(path_of(suite.expectations))
        numbers = " | ".join(str(expected.counts()[kind]) for kind in KINDS)
        lines.append(f"| `{suite.name}` | {expected.release} | {numbers} |")
    return lines


def _reasons(name: str) -> list[str]:
    """Return the reasons why tests of a suite do not pass, each with its number of tests."""
    expected = read_expected(path_of(name))
    reasons = expected.reasons()
    few = [one for one in reasons if one[0] == SKIPPED and reasons[one] < SKIPPED_AT_LEAST]
    rest = sum(reasons.pop(one) for one in few)
    lines = [*_share(expected), "| | tests | why |", "| --- | --- | --- |"]
    for kind, why in sorted(reasons, key=lambda one: (KINDS.index(one[0]), -reasons[one], one[1])):
        said = why.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {kind} | {reasons[kind, why]} | {said} |")
    if rest:
        lines.append(f"| {SKIPPED} | {rest} | other reasons, in `tools/compliance/expected/{name}.txt` |")
    return lines


def _share(expected: Expected) -> list[str]:
    counts = expected.counts()
    if not counts[REFUSED]:
        return []
    asked = counts[PASSED] + counts["failed"]
    share = 1000 * counts[PASSED] // asked / 10  # rounded down: 100.0 means all
    return [f"Of the {asked} tests that are not refused, {counts[PASSED]} pass: {share:.1f} %.", ""]
