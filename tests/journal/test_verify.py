"""Verification: sound journals pass; each manipulation is found, and named correctly."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from bedrockish_journal.model.changes import Value, decode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import JournalFileError
from bedrockish_journal.storage import store
from bedrockish_journal.storage.row import JournalRow
from bedrockish_journal.verify.chain import Chains
from bedrockish_journal.verify.entry_rules import majority, quorum
from bedrockish_journal.verify.verify import verify
from tests.journal.world import NODES, World
from tests.spark.worlds import retiring


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, 5).run(60)
    yield world
    world.close()


def checks(world: World, *nodes: str) -> set[str]:
    paths = [world.nodes[node].path for node in nodes or world.nodes]
    return {finding.check for finding in verify(paths).findings}


def tamper(world: World, node: str, sql: str, *values: Value) -> None:
    db = world.nodes[node].db
    db.execute(sql, values)
    assert db.changes() > 0, "the test tampers with nothing"


def rewrite(world: World, node: str, leader: str, tick: int, change: Callable[[Entry], Entry]) -> None:
    """Forge one entry, and all hashes after it in its timeline, so that the chain alone shows nothing."""
    db = world.nodes[node].db
    entries = list(store.scan_timeline(db, leader))
    prev = entries[tick - 1].prev
    for entry in entries[tick - 1 :]:
        forged = change(entry) if entry.tick == tick else entry
        forged = replace(forged, prev=prev, hash=b"", label=b"")
        prev = forged.hash
        db.execute(
            "UPDATE bedrockish_journal SET label = ?, body = ?, prev = ?, hash = ? WHERE leader = ? AND tick = ?",
            (forged.label, forged.transaction.body, forged.prev, forged.hash, leader, entry.tick),
        )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_unaltered_journals_keep_all_laws(tmp_path: Path, seed: int, size: int) -> None:
    world = World(tmp_path, seed, NODES[:size])
    world.begin()
    for _ in range(40):
        if size > 1:
            world.step()
    report = verify(world.paths)
    assert report.findings == []
    assert [count.node for count in report.counts] == list(world.names)
    assert [count.applied for count in report.counts] == [
        node.applied for node in map(world.nodes.get, world.names) if node
    ]
    world.close()


def test_lagging_journal_is_reported_without_a_fault(world: World) -> None:
    for _ in range(3):
        world.nodes["A"].settle(world.draw)
        world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute([])))
    tick = world.nodes["A"].applied["A"]
    report = verify(world.paths)
    assert report.holds
    assert report.lacks == {"B": [("A", tick - 2, tick)], "C": [("A", tick - 2, tick)]}


def test_connections_of_running_nodes_can_be_verified(world: World) -> None:
    report = verify([node.db for node in world.nodes.values()])
    assert report.holds
    assert [count.entries for count in report.counts] == [report.counts[0].entries] * 3
    assert not world.nodes["A"].db.in_transaction


def test_a_removed_tick_is_found(world: World) -> None:
    tamper(world, "A", "DELETE FROM bedrockish_journal WHERE leader = 'B' AND tick = 3")
    found = verify(world.paths)
    assert {"density"} <= {finding.check for finding in found.findings} <= {"density", "causality", "txid"}
    assert {finding.node for finding in found.findings} == {"A"}
    assert found.lacks == {"A": [("B", 3, 3)]}
    assert any("B3 missing before it" in finding.text for finding in found.findings)


def test_missing_ticks_are_reported_as_ranges(world: World) -> None:
    tamper(world, "A", "DELETE FROM bedrockish_journal WHERE (leader, tick) IN (VALUES ('B', 2), ('B', 4), ('B', 5))")
    tamper(world, "A", "DELETE FROM bedrockish_journal WHERE leader = 'C' AND tick = 1")
    assert verify(world.paths).lacks == {"A": [("B", 2, 2), ("B", 4, 5), ("C", 1, 1)]}


def test_a_flipped_byte_of_a_body_is_found(world: World) -> None:
    entry = next(store.scan_timeline(world.nodes["A"].db, "B", 4))
    body = bytearray(entry.transaction.body)
    body[-3] ^= 1
    tamper(world, "A", "UPDATE bedrockish_journal SET body = ? WHERE leader = 'B' AND tick = 4", bytes(body))
    found = [finding for finding in verify([world.nodes["A"].path]).findings if finding.check == "hash"]
    assert [(finding.leader, finding.tick, finding.txid is None) for finding in found] == [("B", 4, True)]
    assert "link" in checks(world, "A")


def test_an_altered_hash_is_found(world: World) -> None:
    tamper(world, "A", "UPDATE bedrockish_journal SET hash = zeroblob(32) WHERE leader = 'B' AND tick = 4")
    assert checks(world, "A") == {"hash"}
    assert checks(world) == {"hash", "fork"}


def test_a_raised_after_is_found_even_with_the_chain_forged(world: World) -> None:
    def raised(entry: Entry) -> Entry:
        base = dict(entry.after) | {"C": world.nodes["A"].applied["C"] + 5}
        return replace(entry, transaction=replace(entry.transaction, base=base, body=b""))

    rewrite(world, "A", "B", 4, raised)
    assert "causality" in checks(world, "A")
    assert "fork" in checks(world)


def test_a_clock_that_runs_backwards_is_found(world: World) -> None:
    tick = world.nodes["A"].applied["B"]
    rewrite(
        world,
        "A",
        "B",
        tick,
        lambda entry: replace(
            entry, transaction=replace(entry.transaction, txid=entry.txid._replace(clock=5), body=b"")
        ),
    )
    assert {"clock", "columns"} <= checks(world, "A")


def test_a_lost_approval_is_found_even_with_the_chain_forged(world: World) -> None:
    rewrite(world, "A", "A", 1, lambda entry: replace(entry, quorum={"A": 1}))
    assert checks(world, "A") == {"quorum"}
    (finding,) = verify([world.nodes["A"].path]).findings
    assert finding.text == "A1 was approved by A: 1 of 3 voters, 2 are needed"


def test_approval_without_a_vote_does_not_count(world: World) -> None:
    rewrite(world, "A", "A", 1, lambda entry: replace(entry, quorum={"A": 1, "X": 0, "Y": 0}))
    assert checks(world, "A") == {"quorum"}


def test_an_approval_from_before_its_base_was_seen_is_found(world: World) -> None:
    entry = next(
        e for e in store.scan(world.nodes["A"].db) if e.adopted_from is None and e.after.get("B") and e.leader == "A"
    )
    rewrite(world, "A", "A", entry.tick, lambda entry: replace(entry, quorum=dict(entry.quorum) | {"B": 0}))
    assert checks(world, "A") == {"approval"}


def test_a_leader_that_did_not_approve_itself_is_found(world: World) -> None:
    rewrite(world, "A", "A", 1, lambda entry: replace(entry, quorum={"B": 0, "C": 0}))
    assert checks(world, "A") == {"quorum"}


def test_a_false_adoption_is_found(world: World) -> None:
    rewrite(world, "A", "A", 1, lambda entry: replace(entry, adopted_from="B"))
    assert checks(world, "A") == {"label"}


def test_commits_swapped_between_timelines_are_found(world: World) -> None:
    db = world.nodes["A"].db
    for old, new in ((("B", 2), ("Z", 2)), (("C", 2), ("B", 2)), (("Z", 2), ("C", 2))):
        db.execute("UPDATE bedrockish_journal SET leader = ?, tick = ? WHERE leader = ? AND tick = ?", (*new, *old))
    assert {"link", "columns"} <= checks(world, "A")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("clock", 3),
        ("origin", "Z"),
        ("command", "z"),
        ("kind", "schema"),
        ("clock", "x"),
        ("body", "text"),
        ("label", b""),
    ],
)
def test_column_that_differs_from_the_hashed_bytes_is_found(world: World, column: str, value: Value) -> None:
    tamper(world, "A", f"UPDATE bedrockish_journal SET {column} = ? WHERE leader = 'B' AND tick = 5", value)
    assert checks(world, "A") & {"columns", "bytes"}


def test_text_that_is_not_utf_8_is_an_error_that_names_the_file(world: World) -> None:
    """SQLite keeps any bytes as a text; reading it as one fails."""
    tamper(world, "A", "UPDATE bedrockish_journal SET body = CAST(x'fffe80' AS TEXT) WHERE leader = 'B' AND tick = 5")
    with pytest.raises(JournalFileError, match=r"A\.db is not UTF-8 .*damaged or was altered"):
        checks(world, "A")


@pytest.mark.parametrize(
    "alteration",
    [
        "UPDATE bedrockish_journal SET tick = 'x' WHERE leader = 'A'"
        " AND tick = (SELECT max(tick) FROM bedrockish_journal WHERE leader = 'A')",
        "UPDATE bedrockish_journal SET applied_ms = x'00' WHERE leader = 'B' AND tick = 5",
        "INSERT INTO bedrockish_pruned VALUES ('B', 3, zeroblob(32), -5, 'B')",
    ],
)
def test_values_that_no_node_writes_are_found(world: World, alteration: str) -> None:
    tamper(world, "A", alteration)
    assert checks(world, "A", "B") & {"columns", "bytes"}


def test_table_with_other_columns_is_an_error_that_names_the_file(world: World) -> None:
    tamper(world, "A", "DELETE FROM bedrockish_journal WHERE leader = 'B' AND tick = 5")
    world.nodes["A"].db.execute("DROP TABLE bedrockish_pruned; CREATE TABLE bedrockish_pruned(x)")
    with pytest.raises(JournalFileError, match=r"A\.db cannot be read .*damaged or was altered"):
        checks(world, "A")


def test_damaged_pages_are_an_error_that_names_the_file(world: World, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    world.nodes["A"].db.execute("VACUUM INTO ?", (str(copy),))
    size = world.nodes["A"].db.pragma("page_size")
    with apsw.Connection(str(copy)) as db:
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'bedrockish_journal'").get
    with copy.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(bytes(100))
    with pytest.raises(JournalFileError, match=r"copy\.db"):
        verify([copy])


def test_a_command_or_transaction_applied_twice_is_found(world: World) -> None:
    db = world.nodes["A"].db
    db.execute("DROP INDEX bedrockish_journal_txid")
    db.execute("DROP INDEX bedrockish_journal_command")
    tamper(world, "A", "UPDATE bedrockish_journal SET repeat = 0")
    assert {"txid", "command"} <= checks(world, "A") <= {"txid", "command", "columns"}  # a shared one among them


def test_wrong_share_of_changes_is_found(world: World) -> None:
    entry = joined_to(world, "one", "two")
    count = len(decode_changes(entry.transaction.changes))

    def claims(entry: Entry) -> Entry:
        return replace(entry, transaction=replace(entry.transaction, shares=(count, 1), body=b""))

    assert checks(world, "A") == set()
    rewrite(world, "A", entry.leader, entry.tick, claims)
    assert checks(world, "A") == {"bytes"}


def joined_to(world: World, command: str, *joined: str, node: str = "A") -> Entry:
    """Let a node commit a transaction that several commands share; all nodes apply it."""
    world.settle()
    alone = world.transaction(node, "rows", world.nodes[node].execute([]), command=command)
    shared = replace(alone, joined=tuple((one, b"") for one in joined), body=b"")
    entry = world.commit(node, shared)
    world.settle()
    return entry


def texts(world: World, node: str = "A") -> list[tuple[str, str]]:
    return [(finding.check, finding.text) for finding in verify([world.nodes[node].path]).findings]


def test_test_journals_have_shared_and_adopted_transactions(world: World) -> None:
    entries = list(store.scan(world.nodes["A"].db))
    assert any(entry.transaction.joined for entry in entries)
    assert checks(world) == set()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "DELETE FROM bedrockish_joined WHERE command = 'second'",
            "{place} has the command 'second', and {table} does",
        ),
        ("DROP TABLE bedrockish_joined", "the table bedrockish_joined is not there, and"),
        (
            "INSERT INTO bedrockish_joined VALUES ('never', 2)",
            "{table} has the command 'never' in row 2 of the journal",
        ),
        ("INSERT INTO bedrockish_joined VALUES ('never', 999)", "{table} has the command 'never' in row 999"),
        ("INSERT INTO bedrockish_joined VALUES ('first', {seq})", "{table} has the command 'first' in row {seq}"),
        ("INSERT INTO bedrockish_joined VALUES (x'00', 'x')", "{table} has the command b'\\x00' in row x"),
        ("UPDATE bedrockish_joined SET command = 'z' WHERE command = 'third'", "{place} has the command 'third'"),
        (
            "UPDATE bedrockish_joined SET command = 'z' WHERE command = 'third'",
            "{table} has the command 'z' in row {seq}",
        ),
        ("UPDATE bedrockish_joined SET seq = 1 WHERE command = 'third'", "{place} has the command 'third', and"),
        ("UPDATE bedrockish_joined SET seq = 1 WHERE command = 'third'", "{table} has the command 'third' in row 1 of"),
    ],
)
def test_verify_finds_joined_commands_that_differ_from_the_hashed_bytes(world: World, sql: str, said: str) -> None:
    entry = joined_to(world, "first", "second", "third")
    assert texts(world) == []
    db = world.nodes["A"].db
    seq = db.execute("SELECT seq FROM bedrockish_joined WHERE command = 'third'").get
    db.execute(sql.format(seq=seq))
    known = {"place": f"{entry.leader}{entry.tick}", "table": "bedrockish_joined", "seq": seq}
    assert {check for check, _ in texts(world)} == {"columns"}
    assert any(text.startswith(said.format(**known)) for _, text in texts(world)), texts(world)
    assert texts(world, "B") == []


@pytest.mark.parametrize(
    ("one", "other", "twice"),
    [
        (("x", "a"), ("y", "a"), "a"),  # both joined
        (("a", "x"), ("y", "z", "a"), "a"),  # first in one, joined in the other
        (("y", "z", "a"), ("a",), "a"),
    ],
)
def test_command_applied_twice_is_found_as_a_joined_command(
    world: World, one: tuple[str, ...], other: tuple[str, ...], twice: str
) -> None:
    """The bytes and chains show it, with any content of the index table."""
    places = [joined_to(world, *(f"{name}-{number}" for name in one)) for number in range(2)]
    (leader, first), (_, second) = (entry.place for entry in places)
    db = world.nodes["A"].db
    for tick, names in ((first, one), (second, other)):

        def renamed(entry: Entry, names: tuple[str, ...] = names) -> Entry:
            command, *joined = names
            again = replace(entry.transaction, command=command, joined=tuple((n, b"") for n in joined), body=b"")
            return replace(entry, transaction=again)

        rewrite(world, "A", leader, tick, renamed)
    for is_listed in (True, False):
        if not is_listed:
            db.execute("DROP TABLE bedrockish_joined")
        found = [text for check, text in texts(world) if check == "command"]
        assert found == [f"the command {twice!r} was applied 2 times, in {leader}{first}, {leader}{second}"]


def test_a_command_that_is_in_one_transaction_twice_is_found(world: World) -> None:
    entry = joined_to(world, "a", "b")
    shared = replace(entry.transaction, joined=(("b", b""), ("b", b"")), body=b"")
    rewrite(world, "A", "A", entry.tick, lambda entry: replace(entry, transaction=shared))
    assert texts(world) == [("command", f"the command 'b' was applied 2 times, in A{entry.tick}")]


def test_unreadable_entry_is_reported_once(world: World) -> None:
    """The commands of the entry are unknown, so extra commands in the table do not count as a second fault."""
    joined_to(world, "first", "second", "third")
    tamper(world, "A", "UPDATE bedrockish_journal SET body = x'00' WHERE command = 'first'")
    assert checks(world, "A") == {"bytes", "hash"}
    tamper(world, "A", "UPDATE bedrockish_journal SET body = 'text' WHERE command = 'first'")
    assert not any("bedrockish_joined" in text for _, text in texts(world))


def test_verify_accepts_a_journal_of_an_earlier_version_without_the_table(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.begin()
    for node in world.nodes.values():
        node.db.execute("DROP TABLE bedrockish_joined")
    assert checks(world) == set()
    world.close()


def test_repeat_without_a_first_application_is_found(world: World) -> None:
    tamper(world, "A", "UPDATE bedrockish_journal SET repeat = 1 WHERE leader = 'A' AND tick = 1")
    assert checks(world, "A") == {"txid"}


def test_cut_tail_is_found_by_files_that_have_it(world: World) -> None:
    tick = world.nodes["A"].applied["A"]
    tamper(world, "A", "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = ?", tick)
    found = verify(world.paths)
    assert "lost" in {finding.check for finding in found.findings}
    assert found.lacks == {"A": [("A", tick, tick)]}


def test_verify_counts_quorums_by_the_membership_in_force(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.begin()
    changed = world.members("A", 1, ("A", "B", "C", "D"))
    world.settle()
    plain = world.transaction("A", "rows", world.nodes["A"].execute([]))
    world.commit("A", replace(plain, config=1, body=b""))
    stale = world.transaction("A", "rows", world.nodes["A"].execute([]))
    world.commit("A", stale)
    found = verify([world.nodes["A"].path]).findings
    assert [(finding.check, finding.tick) for finding in found] == [("quorum", changed.tick + 2)]
    assert "membership 1 was in force at its base" in found[0].text
    world.close()


def test_a_membership_that_skips_a_version_or_cannot_be_read_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.begin()
    world.members("A", 2, ("A", "B", "C"))
    assert checks(world, "A") == {"members"}
    tamper(world, "A", "UPDATE bedrockish_meta SET value = x'00' WHERE key = 'bootstrap'")
    assert "members" in checks(world, "A")
    tamper(world, "A", "DELETE FROM bedrockish_meta WHERE key = 'bootstrap'")
    assert "members" in checks(world, "A")
    world.close()


def test_quorum_sizes_are_those_of_the_protocol() -> None:
    assert [quorum(n) for n in range(1, 10)] == [1, 2, 2, 3, 3, 4, 5, 5, 6]
    assert [majority(n) for n in range(1, 10)] == [1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_two_conflicting_adoptions_never_both_pass() -> None:
    """With 2q + 2 <= n + f, the conflicting transactions of two dead leaders would block each other for ever."""
    for n in range(1, 40):
        assert 2 * quorum(n) + 2 > n + (n - 1) // 2


def test_chains_check_entries_without_a_file(world: World) -> None:
    def laws(rows: list[JournalRow]) -> set[str]:
        chains = Chains("A")
        return {finding.check for row in rows for finding in chains.check(row)}

    rows = list(store.scan_stored(world.nodes["A"].db))
    assert laws(rows) == set()
    assert laws([*rows[:5], *rows[6:]]) == {"density"}
    assert laws([*rows, rows[-1]]) == {"density"}


def test_entry_after_a_retirement_needs_the_whole_timeline(tmp_path: Path) -> None:
    """Vectors no longer name the timeline, and the base of the change that retired it includes all of it."""
    assert verify(retiring().write(tmp_path / "sound")).findings == []
    unfinished = retiring()
    unfinished.change(("A", 1), lambda draft: replace(draft, base={**draft.base, "C": 2}))
    found = verify(unfinished.write(tmp_path / "unfinished")[:1]).findings
    assert [one.text for one in found] == [
        "A1 had seen B1, but not C3, which B1 had seen",
        # C3 made the first membership, and A1 lacks C3
        "A1 counts by membership 1, but membership 0 was in force at its base",
        "A1 retires the timeline C at C2, and it goes on to C3",
        "A1 and C3 are both committed, and neither had seen the other, and one of them changes the membership",
    ]
