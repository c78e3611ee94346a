"""Open transactions that several programs commit at one moment share one transaction of the cluster."""

import itertools
import threading
import time

import pytest

import bedrockish
from bedrockish.client.blocking import Connection
from tools.cluster import LocalCluster, LocalNode


@pytest.mark.parametrize("by_url", [False, True], ids=["by path", "by URL"])
def test_commits_of_several_programs_share_a_transaction(
    alone: LocalCluster, node: LocalNode, table: str, by_url: bool
) -> None:
    """All have read the same range. Each gets its own place, rows and answer; the journal has the changes of each."""
    commands, until, failures = list[str](), time.monotonic() + 60, list[BaseException]()
    over = threading.Event()

    def is_shared(other: Connection) -> bool:
        joined = other.execute("SELECT command FROM bedrockish_joined", read="stale").rows
        return any(row[0] in commands for row in joined)

    def write(first: int) -> None:
        try:
            with bedrockish.connect(alone.url() if by_url else node.database) as mine:
                for number in itertools.count(first, 8):
                    opened = mine.begin()
                    assert opened.execute(f"SELECT * FROM {table}_rules").rows == []
                    opened.execute(f"INSERT INTO {table} VALUES (?, ?, 5)", (number, f"row {number}"))
                    commands.append(opened.command)
                    opened.execute(f"UPDATE {table} SET a = ? WHERE id = ?", (opened.command, number))
                    assert opened.commit().place is not None
                    if over.is_set() or time.monotonic() > until:
                        return
        except BaseException as error:
            failures.append(error)
            raise

    with bedrockish.connect(alone.url()) as other:
        other.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a UNIQUE, b INTEGER)")
        other.execute(f"CREATE TABLE {table}_rules(id INTEGER PRIMARY KEY)")
        threads = [threading.Thread(target=write, args=(100 + number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while not is_shared(other) and time.monotonic() < until:
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert is_shared(other)
        rows = other.execute(f"SELECT a FROM {table} WHERE id >= 100", read="strict").rows
        assert sorted(row[0] for row in rows) == sorted(commands)
        told = other.execute(
            "SELECT transaction_id, row_after ->> 'a' FROM bedrockish_changes WHERE table_name = ? AND op = 'UPDATE'",
            (table,),
        ).rows
        assert sorted(told) == sorted((command, command) for command in commands)
