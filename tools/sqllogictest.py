"""Runs files of SQLite's sqllogictest format against a cluster of three nodes and against plain SQLite, side by side.

Each statement goes to another node than the one before. It tells apart differences between the cluster and SQLite
(failures), statements that the cluster refuses (docs/sql.md says which and why), and differences between SQLite and the
file, which do not concern the cluster.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import click
import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from bedrockish_journal.storage.store import reading
from bedrockish_journal.verify.replay import digest
from tools.cluster import DemoError, LocalCluster, local_cluster
from tools.logictest.records import FormatError
from tools.logictest.run import Report, Runner

LEVEL_S = 60.0


def files_of(places: tuple[Path, ...]) -> list[tuple[Path, str]]:
    """Return the files, those of folders in order, each with its title."""
    found: list[tuple[Path, str]] = []
    for place in places:
        if place.is_dir():
            found += [(path, str(path.relative_to(place))) for path in sorted(place.rglob("*.test"))]
        else:
            found.append((place, place.name))
    return found


def read(files: list[tuple[Path, str]]) -> Iterator[tuple[str, str]]:
    """Yield the texts of the files, each with its title."""
    for path, name in files:
        yield path.read_text(encoding="utf-8", errors="replace"), name


async def run_all(cluster: LocalCluster, files: Iterable[tuple[str, str]], *, quiet: bool) -> list[Report]:
    """Run all files at a cluster, and wait until all nodes have applied the same."""
    reports: list[Report] = []
    await cluster.wait_all_ready()
    async with AsyncExitStack() as stack:
        urls = [cluster.url(node, only=True) for node in range(len(cluster.nodes))]
        clients = [await stack.enter_async_context(open_client(url)) for url in urls]
        runner = Runner(clients)
        for text, name in files:
            reports.append(await runner.run(text, name))
            if not quiet:
                tell(reports[-1])
        with trio.fail_after(LEVEL_S):
            while True:
                vectors = [(await client.status())["applied"] for client in clients]
                if all(vector == vectors[0] for vector in vectors):
                    return reports
                await trio.sleep(0.1)


def tell(report: Report) -> None:
    """Print the report of a file."""
    how = "DIFFERS" if report.wrong else "ok"
    notes = [
        f"{report.statements} statements, {report.queries} queries",
        *([f"{report.refused.total()} refused"] if report.refused else []),
        *([f"{len(report.other)} that SQLite itself does otherwise"] if report.other else []),
        *([f"given ids: {', '.join(sorted(set(report.given)))}"] if report.given else []),
    ]
    print(f"{how:8} {report.name}: {'; '.join(notes)}", flush=True)
    for line in report.wrong:
        print(f"         {line}")


def digests(cluster: LocalCluster) -> set[str]:
    """Return the digests of the files of stopped nodes: one, if all is well."""
    found = set()
    for node in cluster.nodes:
        with reading(node.database) as db:
            found.add(digest(db))
    return found


@click.command()
@click.argument("places", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE…")
@click.option("--verbose", is_flag=True, help="Also print the differences between SQLite itself and the files.")
@click.option("--quiet", is_flag=True, help="Print the sum only.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="The disk to use.")
def main(places: tuple[Path, ...], verbose: bool, quiet: bool, directory: Path | None) -> None:
    """Run files in SQLite's sqllogictest format, or all *.test in folders, at three nodes and at plain SQLite.

    Ends with 1 if any result, or any table in the end, is not that of SQLite on every node.
    """
    files = files_of(places)
    if not files:
        raise click.UsageError("there is no *.test in these folders")
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix="bedrockish-logic-") as place:
            with local_cluster(Path(place, "nodes")) as cluster:
                try:
                    reports = trio.run(lambda: run_all(cluster, read(files), quiet=quiet))
                finally:
                    for node in cluster.nodes:
                        if not node.is_running:
                            print(f"node {node.name} has ended:\n{node.last_words()}", file=sys.stderr)
            equal = len(digests(cluster)) == 1
    except (DemoError, FormatError, BedrockishError, OSError) as error:
        raise click.ClickException(str(error)) from error
    refused: Counter[str] = sum((report.refused for report in reports), Counter())
    for reason, count in refused.most_common():
        print(f"refused {count} times: {reason}")
    if verbose:
        for report in reports:
            for line in report.other:
                print(f"SQLite: {line}")
    wrong = [report for report in reports if report.wrong]
    if quiet:
        for report in wrong:
            tell(report)
    statements, queries = sum(r.statements for r in reports), sum(r.queries for r in reports)
    print(
        f"{len(reports)} files, {statements} statements, {queries} queries: {len(wrong)} files differ from SQLite; "
        f"{refused.total()} refused; {sum(len(r.other) for r in reports)} where SQLite differs from the file; "
        f"the nodes' tables are {'equal' if equal else 'NOT EQUAL'}"
    )
    sys.exit(1 if wrong or not equal else 0)


if __name__ == "__main__":
    main(prog_name="tools/sqllogictest")
