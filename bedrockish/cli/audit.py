"""``bedrockish audit``: check the journals of all nodes against the laws that they must obey, with DuckDB or Spark.

``bedrockish journal verify`` walks through the files and needs no further package. The audit queries all journals
together, also for conflicts, and prints nothing but its report. Status 0: all laws hold; 1: something is wrong; 3: the
audit could not be made.
"""

import importlib.util
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bedrockish.cli.progress import write_over
from bedrockish.cli.words import labels
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.key_text import key_text
from bedrockish_journal.spark.session import check_java

STATUS_WRONG, STATUS_CANNOT = 1, 3
if TYPE_CHECKING:
    from bedrockish_journal.audit.report import AuditExtent

DUCKDB, SPARK = "duckdb", "spark"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE_OR_URL...")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--strict", is_flag=True, help="Count information as faults: all nodes must have the same entries to the last one."
)
@click.option(
    "--engine",
    type=click.Choice([DUCKDB, SPARK]),
    default=DUCKDB,
    show_default=True,
    help="The engine that checks the journals: DuckDB on this machine, or Spark.",
)
@click.option(
    "--memory", default="1GB", show_default=True, help="The memory that DuckDB may use; further data go to disk."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The number of findings to print for each check.",
)
@click.pass_context
def audit(
    context: click.Context, files: tuple[str, ...], as_json: bool, strict: bool, engine: str, memory: str, limit: int
) -> None:
    """Audit journals: one file of each node, or its URL, or exports. The nodes may be running.

    'bedrockish journal verify' also compares files with a replay, and with the anchors of 'bedrockish anchor'.
    """
    try:
        report = ReportPrinter(strict, as_json)
        _check_engine(engine, memory)
        if engine == SPARK:
            check_java()
            report.line("starting Spark…")
        _audit(report, list(files), limit, engine, memory)
    except (JournalError, BedrockishError) as error:
        click.echo(f"error: {error}", err=True)
        context.exit(STATUS_CANNOT)
    report.end()
    if report.wrong:
        context.exit(STATUS_WRONG)


class ReportPrinter:
    """The printer of a report: the checks as they end, then the findings; or everything at the end, as JSON."""

    def __init__(self, strict: bool, as_json: bool) -> None:
        self._strict, self._as_json = strict, as_json
        self._checks: list[dict[str, Any]] = []
        self._counts: dict[str, Any] = {}
        self.unseen: dict[str, str] = {}
        self.wrong = False

    def line(self, text: str) -> None:
        """Print a line of the readable report."""
        if not self._as_json:
            click.echo(text)

    def count(self, told: "AuditExtent") -> None:
        """Print the extent of the audit, and the removed entries that it cannot judge."""
        self._counts = asdict(told)
        nodes = f"{len(told.nodes)} nodes ({', '.join(told.nodes)})"
        self.line(f"{nodes}, {told.transactions} commits, {told.entries} entries, up to {labels(told.heads)}")
        for node, ticks in sorted(told.removed.items()):
            self.line(f"{node} has removed all up to {labels(ticks)}: only later entries are checked")

    def add(self, check: str, says: str, found: list[dict[str, Any]], counts: dict[str, int]) -> None:
        """Add the outcome of one check, and print its line."""
        faults, information = counts.get("fault", 0), counts.get("information", 0)
        bad = faults + (information if self._strict else 0)
        self.wrong = self.wrong or bad > 0
        self._checks.append({"check": check, "says": says, "holds": bad == 0, **counts, "findings": found})
        outcome = "ok" if bad == 0 else f"{bad} finding{'s' * (bad > 1)}"
        note = f"  ({information} for information)" if information and not self._strict else ""
        self.line(f"  {check:<10} {outcome:<12} {says}{note}")

    def end(self) -> None:
        """Print the findings and the verdict."""
        if self._as_json:
            told = {"holds": not self.wrong, **self._counts, "checks": self._checks, "unseen": self.unseen}
            click.echo(json.dumps(told, indent=2))
            return
        for check in self._checks:
            for finding in check["findings"]:
                where = f" in the files of {finding['node']}" if finding["node"] else ""
                click.echo(f"{finding['level']}: {check['check']}{where}: {finding['text']}{_about(finding)}")
            hidden = check["fault"] + check["information"] - len(check["findings"])
            if hidden:
                click.echo(f"… and {hidden} more of {check['check']}; see --limit")
        if self.unseen:
            click.echo("not checked: " + ", ".join(f"{law} ({what})" for law, what in self.unseen.items()))
        click.echo("something is wrong" if self.wrong else "the journals hold")


def _about(finding: dict[str, Any]) -> str:
    """Return the transaction, table and row of a finding, unless its text has them."""
    row = f"{finding['table']} {finding['key'] or ''}".strip() if finding["table"] else ""
    parts = [part for part in (finding["txid"], row) if part and part not in finding["text"]]
    return f" ({': '.join(parts)})" if parts else ""


def _check_engine(engine: str, memory: str) -> None:
    """Check that the packages of an engine are installed, before anything is read."""
    for name in ("pyspark", "pyarrow") if engine == SPARK else ("duckdb", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            extra = "spark" if engine == SPARK else "audit"
            raise JournalError(
                f"{name} is not installed; pip install 'bedrockish[{extra}]', or check the files with "
                "'bedrockish journal verify', which needs no other package"
            )
    if not re.fullmatch(r"\d+(\.\d+)? ?([KMGT]i?B)", memory):
        raise JournalError(f"--memory {memory} is not a size; write it as 500MB or 2GB")


def _audit(report: ReportPrinter, paths: list[str], limit: int, engine: str, memory: str) -> None:
    from bedrockish_journal.audit.report import AuditExtent, LawOutcome  # needs pyarrow, which is there by now

    if engine == SPARK:
        from bedrockish_journal.audit import on_spark

        answers = on_spark.run_audits(paths, limit)
    else:
        from bedrockish_journal.audit import duck

        answers = duck.run_audits(paths, limit, memory, _progress)
    for told in answers:
        if isinstance(told, AuditExtent):
            write_over()
            report.count(told)
        elif isinstance(told, LawOutcome):
            report.add(told.check, told.says, [_readable(asdict(finding)) for finding in told.findings], told.counts)
        else:
            report.unseen = told


def _progress(node: str, entries: int, of: int) -> None:
    write_over(f"{node}: {entries} of {max(of, entries)} entries")


def _readable(finding: dict[str, Any]) -> dict[str, Any]:
    """Return a finding with a readable key of a conflict; the bytes of the key are in ``key_bytes``."""
    if finding["check"] != "conflict" or finding["key"] is None:
        return finding
    return {**finding, "key": key_text(bytes.fromhex(finding["key"])), "key_bytes": finding["key"]}
