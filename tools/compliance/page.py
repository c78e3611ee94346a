"""Writes docs/compliance.md from the files of expectations."""

from tools.compliance.outcomes import KINDS, PASSED, REFUSED, SKIPPED, Expected, path_of, read_expected
from tools.compliance.suites import SUITES, Suite

HEAD = """\
Test suites of other projects run here against three real nodes and, for comparison, against plain SQLite.
The folder `tools/compliance/expected` lists each test that does not pass, with the reason. A changed outcome changes
these files, so a review sees it.

```sh
python -m tools.compliance              # all suites, or the named ones
python -m tools.compliance cpython --write --plain   # record the outcomes; write the reasons by hand
```

`tools/test` runs a sample of each suite, `tools/test --slow` all of them.
[requirements.lock](../tools/requirements.lock) pins the packages. The expected outcomes are those of one release; with
another release of a package, the report says so and compares nothing.

- *Refused*: the test needs something that a replicated database refuses by design. The error names an alternative.
- *Failed*: every other failure.
- *Skipped*: the suite itself skips the test, for a reason of its own or because our backend declares a feature as
  missing.
"""

# Suites skip most tests for the sake of other databases: reasons with fewer tests than this share a row.
SKIPPED_AT_LEAST = 10

NOT_RUN = {
    "clients of libSQL for Go, Rust, PHP, Dart, Ruby": (
        "CI lacks their compilers and interpreters. `libsql` from PyPI is the client for Rust."
    ),
    "`prisma migrate`": (
        "It needs an engine from `binaries.prisma.sh`, which is not a package registry. Client and adapter are run."
    ),
    "the rest of Django's suite": (
        "Requests, templates and forms do not depend on the database backend, and GIS needs SpatiaLite."
    ),
}
NAMED = "At its end, a run also names missing requirements: a package, `node`, or the tests of the Python interpreter."


def compliance_page(note: str) -> str:
    """Return the page; ``note`` says that it is written by a program."""
    lines = ["# Test suites of other projects", "", note, "", HEAD]
    lines.append("| suite | release | | passed | refused | failed | skipped |")
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    found = {name: read_expected(path_of(suite.expectations)) for name, suite in SUITES.items()}
    for name, suite in SUITES.items():
        lines += rows(suite, found[name])
    for name, suite in SUITES.items():
        lines += ["", f"## {suite.heading}", "", *about(suite, found[name])]
    lines += ["", "## What is not run", "", NAMED, "", "| | why |", "| --- | --- |"]
    lines += [f"| {what} | {why} |" for what, why in NOT_RUN.items()]
    return "\n".join(lines) + "\n"


def rows(suite: Suite, expected: Expected) -> list[str]:
    """Return the lines of the table about a suite."""
    counts = expected.counts()
    link = f"[{suite.heading}](#{suite.heading.lower().replace(' ', '-')})"
    numbers = " | ".join(str(counts[kind]) for kind in KINDS)
    lines = [f"| {link} | {expected.release} | three nodes | {numbers} |"]
    if expected.plain and suite.run_plain is not None:
        plain = " | ".join(str(expected.plain.get(kind, "")) for kind in KINDS)
        lines.append(f"| | | plain SQLite | {plain} |")
    return lines


def about(suite: Suite, expected: Expected) -> list[str]:
    """Return the lines about the tests of a suite that do not pass."""
    lines = [f"{suite.title}: {expected.selection}."]
    if suite.same_as:
        return [*lines, "", f"The outcomes are those of {SUITES[suite.same_as].heading}."]
    counts = expected.counts()
    if counts[REFUSED]:
        asked = counts[PASSED] + counts["failed"]
        share = 1000 * counts[PASSED] // asked / 10  # rounded down: 100.0 means all
        lines += ["", f"Of the {asked} tests that are not refused, {counts[PASSED]} pass: {share:.1f} %."]
    reasons = expected.reasons()
    if reasons:
        lines += ["", "| | tests | why |", "| --- | --- | --- |"]
    few = [one for one in reasons if one[0] == SKIPPED and reasons[one] < SKIPPED_AT_LEAST]
    rest = sum(reasons.pop(one) for one in few)
    for kind, why in sorted(reasons, key=lambda one: (KINDS.index(one[0]), -reasons[one], one[1])):
        said = why.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {kind} | {reasons[kind, why]} | {said} |")
    if rest:
        where = f"tools/compliance/expected/{suite.expectations}.txt"
        lines.append(f"| {SKIPPED} | {rest} | other reasons, in `{where}` |")
    return lines
