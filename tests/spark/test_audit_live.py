"""The audit of running nodes, and of exports: unfinished writes are not faults."""

import os
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from bedrockish import open_client
from bedrockish.api.requests import MemberChange
from bedrockish.cli.export import export_journal
from bedrockish.client.in_thread import run
from bedrockish.common.password_hash import SALT_BYTES, hash_password
from bedrockish.embedded import Node
from bedrockish_journal.audit.duck import run_audits
from bedrockish_journal.audit.report import AuditExtent, LawOutcome
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.inputs import ENTRY_BYTES, find_inputs
from tests.cluster.story import ready
from tests.spark.worlds import honest, touching
from tools.cluster import LocalCluster, local_cluster

ROUNDS = 2
PAUSE_S = 0.05  # between the writes of a client: the journals stay small


def asked(paths: list[str]) -> tuple[list[Finding], dict[str, str], int]:
    """Return the findings, the laws that were not checked, and the number of entries."""
    told = list(run_audits(paths, 20))
    found = [one for law in told if isinstance(law, LawOutcome) for one in law.findings]
    (unseen,) = [one for one in told if isinstance(one, dict)]
    (counts,) = [one for one in told if isinstance(one, AuditExtent)]
    return found, unseen, counts.entries


@pytest.mark.cluster
def test_journals_of_nodes_under_load_obey_the_laws(tmp_path: Path) -> None:
    """Two by their URLs, one by its file, again and again, while clients write at all of them."""
    with local_cluster(tmp_path / "cluster") as cluster:
        seen = trio.run(write_and_audit, cluster)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] > 0


async def write_and_audit(cluster: LocalCluster) -> list[int]:
    await ready(cluster)
    paths = [cluster.url(0, only=True), str(cluster.nodes[1].database), cluster.url(2, only=True)]
    entries = []
    async with open_client(cluster.url(0)) as first, trio.open_nursery() as nursery:
        await first.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")

        async def write(node: int) -> None:
            async with open_client(cluster.url(node)) as client:
                while True:
                    await client.execute("INSERT INTO t(n) VALUES (?)", (node,))
                    await trio.sleep(PAUSE_S)

        for node in range(3):
            nursery.start_soon(write, node)
        for _ in range(ROUNDS):
            found, unseen, count = await trio.to_thread.run_sync(asked, paths)
            assert [one for one in found if one.level == "fault"] == []
            assert list(unseen) == ["columns", "tables", "anchor"]
            assert unseen["columns"] == "bedrockish_joined in the file of A, C"
            entries.append(count)
        size = await trio.to_thread.run_sync(lambda: find_inputs(paths[:1]).size)
        assert size >= entries[-1] // 4 * ENTRY_BYTES, "a third of the entries are of this node, which has no file here"
        nursery.cancel_scope.cancel()
    return entries


@pytest.mark.cluster
def test_audit_of_a_node_that_hides_hashed_bytes_needs_an_admin(tmp_path: Path) -> None:
    """A reader does not see the hashes of passwords, so the hashes of these entries would seem wrong."""
    with Node() as node, node.connect() as db:
        for name, role in (("root", "admin"), ("ann", "reader")):
            secret = str(hash_password("secret", os.urandom(SALT_BYTES)))
            run(db._client.change_members, MemberChange("user add", name, role=role, secret=secret))
        urls = {name: f"bedrockish://{name}@/?host={node.path}-sock" for name in ("root", "ann")}
        assert [one for one in asked([urls["root"]])[0] if one.level == "fault"] == []
        with pytest.raises(JournalError, match="log in as an admin"):
            asked([urls["ann"]])
        told = CliRunner().invoke(export_journal, [urls["ann"], "--to", str(tmp_path / "out")])
        assert "export as an admin" in told.stderr
        told = CliRunner().invoke(export_journal, [urls["root"], "--to", str(tmp_path / "whole")])
        assert (told.exit_code, told.stderr.strip()) == (0, "")
        assert [one for one in asked([str(tmp_path / "whole")])[0] if one.level == "fault"] == []


def test_audit_reports_an_export_older_than_the_files_as_no_fault(tmp_path: Path) -> None:
    """An older file of the node itself is a fault, because the node writes its timeline before any other node."""
    world = honest(40)
    old = world.write(tmp_path / "old")
    with open_feed(str(old[0])) as feed:
        export(feed, str(tmp_path / "out"), step=30)
    assert world.commit("A", touching("fresh"))
    world.settle()
    new = world.write(tmp_path / "new")
    found, unseen, _ = asked([str(tmp_path / "out"), *map(str, new[1:])])
    assert {one.level for one in found} == {"information"}
    assert [(one.leader, one.node) for one in found if one.check == "lost"] == [("A", "A")]
    assert unseen == {
        "columns": "bedrockish_joined in the file of A",
        "void": "bedrockish_meta in the file of A",
        "users": "the memberships in the file of A",
        "tables": "journal verify --tables",
        "anchor": "journal verify --anchor",
    }
    found, _, _ = asked([str(old[0]), *map(str, new[1:])])
    assert [(one.check, one.leader, one.node) for one in found if one.level == "fault"] == [("lost", "A", "A")]
