"""A transaction that is larger than a result may be reaches each reader of the journal, whole."""

import json
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.client.feed import Changes, blocking_changes
from bedrockish_journal.arrow import read_journal
from bedrockish_journal.feed.change_feed import Committed
from tests.cluster.story import all_safe, command
from tests.cluster.test_restore import rows_of
from tests.http.conftest import node_with_limits

pytestmark = pytest.mark.cluster


def lengths(feed: list[Committed]) -> list[int]:
    """Return the lengths of the rows of the feed's last transactions."""
    return [len(str(change.after[1])) for one in feed for change in one.changes if change.after is not None]


async def read(url: str) -> list[Committed]:
    async with bedrockish.open_client(url) as client:
        return [one async for one in Changes(client, follow=False)]


@pytest.mark.parametrize(
    ("limits", "long", "count"),
    [
        pytest.param({"result_bytes_max": 1_000}, 100_000, 3, id="small results"),
        pytest.param({}, 31_000_000, 1, id="the largest row"),
    ],
)
def test_transaction_larger_than_a_result_reaches_every_reader_of_the_feed(
    tmp_path: Path, limits: dict[str, int], long: int, count: int
) -> None:
    expected = [long, 5] * count
    with node_with_limits(tmp_path / "one", **limits) as ask:
        cluster, file = ask.cluster, ask.cluster.nodes[0].database
        with bedrockish.connect(cluster.url()) as db:
            db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
            for number in range(count):
                db.execute("INSERT INTO account VALUES (?, printf('%.*c', ?, 'x'))", (2 * number, long))
                db.execute("INSERT INTO account VALUES (?, 'short')", (2 * number + 1,))
        trio.run(all_safe, cluster)
        for where in (cluster.url(), str(file)):
            with bedrockish.connect(where) as db:
                assert lengths(list(blocking_changes(db, follow=False))) == expected, where
            assert lengths(trio.run(read, where)) == expected, where
        reply = ask("/changes")
        *found, last = map(json.loads, reply.body.splitlines())
        assert [len(change["after"]["owner"]) for one in found for change in one["changes"]] == expected, last
        printed = [json.loads(line) for line in command("changes", cluster.url(), "--json").splitlines()]
        assert [one["cursor"] for one in printed] == [one["cursor"] for one in found]
        for source in (cluster.url(), str(file)):
            owners = read_journal(source, rows="account").read_all()["owner"].to_pylist()
            assert sorted(map(len, owners)) == sorted(expected), source
        command("backup", "follow", cluster.url(), tmp_path / "kept", "--once")
        with bedrockish.connect(cluster.url()) as db:
            db.execute("INSERT INTO account VALUES (99, printf('%.*c', ?, 'y'))", (long,))
        trio.run(all_safe, cluster)
        command("backup", "follow", cluster.url(), tmp_path / "kept", "--once")
    command("restore", "--from", tmp_path / "kept", "--to", tmp_path / "new.db")
    assert len(rows_of(tmp_path / "new.db")[99][1]) == long
