"""Writes the documentation that repeats what the code says: command line, errors, reference, parts of the protocol.

Run it after changing the command line, an error class, a message or a trace; a test compares the pages with its output.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path

import click

import bedrockish.errors
import bedrockish_journal.model.errors
import bedrockish_net.errors
from bedrockish.cli.main import main as command_line
from bedrockish.core.describe import REASONS
from bedrockish.core.protocol.messages import WIRE, Reason
from bedrockish.core.state.settings import approvals_needed, majority
from bedrockish.node.admin.troubles import KINDS
from bedrockish_journal.model.laws import ANCHORS, LAWS, TABLES
from tools.compliance import page as compliance
from tools.reference import described, reference_page
from tools.sql_surface import surface

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by `python -m tools.docs`; do not edit. -->"


def subclasses(base: type) -> Iterator[tuple[int, type]]:
    """Yield a class and its subclasses in the same module, each with its depth below the class."""

    def walk(cls: type, depth: int) -> Iterator[tuple[int, type]]:
        yield depth, cls
        below: list[type] = cls.__subclasses__()
        for sub in below:
            if sub.__module__ == base.__module__:
                yield from walk(sub, depth + 1)

    return walk(base, 0)


def errors_page() -> str:
    """Return docs/errors.md."""
    lines = [
        "# Errors",
        "",
        NOTE,
        "",
        "A call has one of three outcomes, which a caller must distinguish:",
        "it did not happen (every error but one), it happened (no error), or it is unknown (`OutcomeUnknownError`).",
        "A caller catches the errors of `bedrockish.errors`; the other ones are raised by the packages below it.",
        "",
        "| class | code | trying again can help | exit status |",
        "| --- | --- | --- | --- |",
    ]
    for _, cls in subclasses(bedrockish.errors.BedrockishError):
        assert issubclass(cls, bedrockish.errors.BedrockishError)
        link = f"[{cls.__name__}](#{cls.__name__.lower()})"
        lines.append(f"| {link} | `{cls.code}` | {'yes' if cls.retry else 'no'} | {cls.exit_code} |")
    roots = (
        bedrockish.errors.BedrockishError,
        bedrockish_journal.model.errors.JournalError,
        bedrockish_net.errors.NetError,
    )
    for root in roots:
        lines += ["", f"## {root.__module__}"]
        for depth, cls in subclasses(root):
            base = cls.__bases__[0].__name__
            article = "an" if base.startswith(("A", "E", "I", "O", "Un")) else "a"
            above = f" ({article} `{base}`)" if depth else ""
            lines += ["", f"### {cls.__name__}", "", f"`{cls.__module__}.{cls.__name__}`{above}", ""]
            lines += described(cls.__doc__)
    return "\n".join(lines) + "\n"


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context for every command and group, depth first."""
    wide = {"terminal_width": 100, "max_content_width": 100}
    context = click.Context(command, parent, info_name=name, **{**command.context_settings, **wide})
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from contexts(found, below, context)


def cli_page() -> str:
    """Return docs/cli.md: the help of every command, as the program prints it."""
    lines = ["# Command line", "", NOTE, ""]
    lines += ["A command ends with status 0, or with that of its error: see [errors](errors.md)."]
    for context in contexts(command_line, "bedrockish"):
        text = context.command.get_help(context)
        lines += [
            "",
            f"## {context.command_path}",
            "",
            "```text",
            *(line.rstrip() for line in text.splitlines()),
            "```",
        ]
    return "\n".join(lines) + "\n"


def trace(name: str) -> list[str]:
    path = ROOT / "tests" / "traces" / f"{name}.txt"
    return ["```text", *path.read_text().rstrip("\n").splitlines(), "```"]


def messages() -> list[str]:
    """Return the table of the messages between nodes."""
    lines = ["| number | message | fields | what it says |", "| --- | --- | --- | --- |"]
    for number, (cls, _) in WIRE.items():
        named = ", ".join(f"`{field.name}`" for field in fields(cls))
        lines.append(f"| {number} | {cls.__name__.upper()} | {named} | {described(cls.__doc__)[0]} |")
    return lines


def reasons() -> list[str]:
    """Return the table of the reasons to reject; the meaning of each is a comment in the source."""
    source = inspect.getsource(Reason)
    said = dict(re.findall(r"^    (\w+) = \d+  # (.+)$", source, flags=re.MULTILINE))
    rows = [f"| `{reason.name}` | {REASONS[reason]} | {said[reason.name]} |" for reason in Reason]
    return ["| reason | as printed | meaning |", "| --- | --- | --- |", *rows]


def quorums() -> list[str]:
    each = [(n, (n - 1) // 2, majority(n), approvals_needed(n)) for n in range(1, 10)]
    rows = [f"| {' | '.join(map(str, numbers))} |" for numbers in each]
    return ["| voters | may be gone | majority | approvals needed |", "| --- | --- | --- | --- |", *rows]


def rooms() -> list[str]:
    """Return the table of the folders, with the first paragraph of each docstring."""
    lines = ["| room | what it is for |", "| --- | --- |"]
    for top in ("bedrockish", "journal/bedrockish_journal", "net/bedrockish_net"):
        for path in sorted((ROOT / top).rglob("__init__.py")):
            room = path.parent.relative_to(ROOT).as_posix()
            lines.append(f"| `{room}` | {described(ast.get_docstring(ast.parse(path.read_text())))[0]} |")
    return lines


def laws() -> list[str]:
    """Return the table of the laws and of the programs that check each."""
    options = {TABLES: "with `--tables`", ANCHORS: "with `--anchor`"}
    lines = [
        "| law | what holds | it needs | `verify` | `audit` | simulator |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for law in LAWS:
        walked, asked = options.get(law.needs, "yes"), "no" if law.needs in options else "yes"
        cells = (f"`{law.name}`", law.says, law.needs, walked, asked, "yes" if law.simulated else "no")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def filled(page: str, parts: Mapping[str, Callable[[], list[str]]]) -> str:
    text = (ROOT / "docs" / page).read_text()

    def fill(found: re.Match[str]) -> str:
        kind, name = found["kind"], found["name"]
        lines = trace(name) if kind == "trace" else parts[kind]()
        return "\n".join([found["opening"], "", *lines, "", f"<!-- end of {kind} -->"])

    kinds = "|".join(("trace", *parts))
    opening = rf"(?P<opening><!-- (?P<kind>{kinds})(: (?P<name>\w+))? -->)"
    marked = opening + r"\n.*?<!-- end of (?P=kind) -->"
    return re.sub(marked, fill, text, flags=re.DOTALL)


def troubles_page() -> str:
    lines = [
        "# Troubles",
        "",
        *("This page is generated from the node's own table by `python -m tools.docs`.", ""),
        "`bedrockish status` names what is wrong first, says what to do, and ends with 1. "
        "`GET /readyz` has the same list as `troubles`; it says 503 for those that make a node of no use. "
        'Each is the metric `bedrockish_trouble{code="…"}`, 0 or 1, and the node logs when it comes and goes. '
        "[alerts.yml](alerts.yml) has a rule for Prometheus for each of them.",
        "",
        "The first in this order is named first.",
        "",
        "| code | what it means | `/readyz` | told after | what to do |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| `{kind.code}` | {kind.title} | {'503' if kind.useless else '200'} | "
            f"{f'{kind.after_s:g} s' if kind.after_s else 'at once'} | {kind.do} |"
            for kind in KINDS.values()
        ),
    ]
    return "\n".join(lines) + "\n"


def alerts_page() -> str:
    """Return docs/alerts.yml: an alert rule of Prometheus for each trouble."""
    lines = [
        "# Alert rules for Prometheus, generated from the node's table of troubles by `python -m tools.docs`.",
        *("groups:", "  - name: bedrockish", "    rules:"),
        *("      - alert: BedrockishDown", '        expr: up{job=~".*bedrockish.*"} == 0', "        for: 1m"),
        *("        labels: {severity: critical}", "        annotations:"),
        "          summary: 'a node does not answer'",
        "          description: 'start it; its log says why it ended'",
    ]
    for kind in KINDS.values():
        name = "".join(part.title() for part in kind.code.split("_"))
        lines += [
            f"      - alert: Bedrockish{name}",
            f'        expr: bedrockish_trouble{{code="{kind.code}"}} == 1',
            f"        for: {'1m' if kind.useless else '5m'}",
            f"        labels: {{severity: {'critical' if kind.useless else 'warning'}}}",
            "        annotations:",
            f"          summary: {_quoted(kind.title)}",
            f"          description: {_quoted(kind.do)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


TABLES_OF: dict[str, Mapping[str, Callable[[], list[str]]]] = {
    "architecture.md": {"rooms": rooms},
    "compliance.md": compliance.tables(),
    "laws.md": {"laws": laws},
    "protocol.md": {"messages": messages, "reasons": reasons, "quorums": quorums},
    "sql.md": {"surface": surface},
}
GENERATED: dict[str, Callable[[], str]] = {
    "docs/alerts.yml": alerts_page,
    "docs/cli.md": cli_page,
    "docs/errors.md": errors_page,
    "docs/reference.md": lambda: reference_page(NOTE),
    "docs/troubles.md": troubles_page,
    **{f"docs/{page}": partial(filled, page, parts) for page, parts in TABLES_OF.items()},
}


def render(page: str) -> str:
    return GENERATED[page]()


def main() -> None:
    """Write every generated page."""
    for page in GENERATED:
        (ROOT / page).write_text(render(page))
        print(page)


if __name__ == "__main__":
    main()
