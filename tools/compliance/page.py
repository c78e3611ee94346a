"""Writes docs/compliance.md from the files of expectations."""

from tools.compliance.outcomes import KINDS, PASSED, REFUSED, Expected, path_of, read_expected
from tools.compliance.suites import SUITES, Suite

HEAD = """\
Test suites of other projects run here against three real nodes, and for comparison against plain SQLite.
Tests that do not pass are listed, each with the reason, in `tools/compliance/expected`, and any change of that is
seen in review:

```sh
python -m tools.compliance              # all of them; or the names of some
python -m tools.compliance cpython --write --plain   # note what is found; give the reasons by hand
```

`tools/test` runs a part of each, `tools/test --slow` all. Every package is one that
[requirements.lock](../tools/requirements.lock) pins. Expectations are for one release of a package. With another
release, the results are not compared, and the report says so.

*Refused* tests need something that a replicated database does not do by design; the error says what to do instead. All
other failures are *failed*. *Skipped* tests are left out by the suite itself, for its own reasons or because our
backend declares that it does not support them.
"""

NOT_RUN = {
    "clients of libSQL for Go, Rust, PHP, Dart, Ruby": (
        "CI lacks their compilers and interpreters. `libsql` from PyPI is the client for Rust."
    ),
    "`prisma migrate`": (
        "It needs an engine from `binaries.prisma.sh`, which is not a package registry. Client and adapter are run."
    ),
    "the rest of Django's suite": (
        "Requests, templates, forms and GIS: a database backend decides nothing in them, or SpatiaLite does."
    ),
}
NAMED = (
    "Missing requirements are named at the end of a run, too: an interpreter without its tests, no `node`, a package."
)


def compliance_page(note: str) -> str:
    """Return the page; ``note`` says that it is written by a program."""
    lines = ["# Suites that others wrote", "", note, "", HEAD]
    lines += [
        "| suite | release | | passed | refused | failed | skipped |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
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
        return [*lines, "", f"The same tests pass and are skipped as of {SUITES[suite.same_as].heading}."]
    counts = expected.counts()
    if counts[REFUSED]:
        asked = counts[PASSED] + counts["failed"]
        share = 100 * counts[PASSED] / asked
        lines += ["", f"Of the {asked} tests that ask for nothing that is refused, {share:.1f} % pass."]
    reasons = expected.reasons()
    if reasons:
        lines += ["", "| | tests | why |", "| --- | --- | --- |"]
    for kind, why in sorted(reasons, key=lambda one: (KINDS.index(one[0]), -reasons[one], one[1])):
        said = why.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {kind} | {reasons[kind, why]} | {said} |")
    return lines
