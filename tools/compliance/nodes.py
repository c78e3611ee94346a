"""Nodes for one suite alone, because a suite drops all tables, and the process that runs the suite."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from tools.cluster import DemoError, LocalCluster, clean_environment
from tools.compliance.outcomes import Outcomes, read_record

NONE: Mapping[str, str] = {}


@contextmanager
def three_nodes(directory: Path, plugins: Sequence[str] = (), *, names: str = "ABC") -> Iterator[LocalCluster]:
    """Start nodes that answer, and stop them at the end of the block.

    Raises:
        DemoError: they do not answer in time.
    """
    head = f"plugins = [{', '.join(map(repr, plugins))}]" if plugins else ""
    with LocalCluster(directory, tuple(names)).running(head) as cluster:
        trio.run(cluster.wait_all_ready)
        yield cluster


def record_of(
    name: str, command: Sequence[str], record: Path, cwd: Path, limit_s: float, settings: Mapping[str, str] = NONE
) -> Outcomes:
    """Run a suite in a separate process, and return the outcomes that it has recorded.

    Args:
        name: the name of the suite, for errors.
        command: the command of the process.
        record: the file that the process writes; its output goes to a file next to it.
        cwd: the working directory, in which suites make files.
        limit_s: the time that the process gets.
        settings: variables for its environment.

    Raises:
        DemoError: the suite did not run to its end.
    """
    environment = {**clean_environment(), **settings}
    with record.with_suffix(".txt").open("w+") as output:
        subprocess.run(command, cwd=cwd, env=environment, stdout=output, stderr=output, timeout=limit_s, check=False)
        output.seek(0)
        lines = output.read().splitlines()
    if not record.exists():
        ended = "\n".join(lines[-20:])
        raise DemoError(f"{name} did not run to its end; the output ends:\n{ended}")
    return read_record(record)
