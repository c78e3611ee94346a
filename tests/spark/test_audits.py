"""Honest journals pass every audit; each planted fault is found by its audit, and named."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import apsw
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bedrockish_journal.audit import on_spark
from bedrockish_journal.audit.duck import run_audits
from bedrockish_journal.audit.on_spark import ask_spark
from bedrockish_journal.audit.queries import QUERIES
from bedrockish_journal.audit.report import LawOutcome
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.laws import FAULT, INFORMATION, Finding
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.inputs import find_inputs
from tests.journal.anchoring import anchored, hold
from tests.journal.tampering import SEEN, UNANCHORED, UNSEEN, make, tampered
from tests.spark.worlds import START_MS, Draft, World, honest, key, retiring, touching

PANDAS = "ignore:PySpark does not yet fully support pandas"  # a warning of every run, which ``quiet_session`` hides


def audit(paths: list[Path], *laws: str) -> list[Finding]:
    """Return DuckDB's findings for some laws, or for all."""
    told = run_audits([str(path) for path in paths], 50, laws=frozenset(laws or QUERIES))
    return [one for law in told if isinstance(law, LawOutcome) for one in law.findings]


def spoil(path: Path, sql: str, *bindings: object) -> None:
    db = apsw.Connection(str(path))
    for name in ("place", "command", "txid"):
        db.execute(f"DROP INDEX IF EXISTS bedrockish_journal_{name}")
    db.execute(sql, bindings)
    assert db.changes() > 0
    db.close()


def both(spark: SparkSession, paths: list[Path]) -> list[Finding]:
    """Return the findings, which must be equal by DuckDB and by Spark."""
    found = audit(paths)
    told = ask_spark(spark, find_inputs([str(path) for path in paths]), 50)
    by_spark = [one for law in told if isinstance(law, LawOutcome) for one in law.findings]
    assert sorted(by_spark, key=repr) == sorted(found, key=repr)
    return found


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings(PANDAS)
def test_unaltered_journals_have_no_findings_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    world = honest()
    assert any(draft.adopted_from for draft in world.drafts.values())
    assert len(world.drafts) > 200
    assert both(spark, world.write(tmp_path)) == []


@pytest.mark.parametrize("column", ["clock", "applied_ms", "body"])
def test_values_of_other_types_are_found(tmp_path: Path, column: str) -> None:
    paths = honest(30).write(tmp_path)
    spoil(paths[1], f"UPDATE bedrockish_journal SET {column} = 1.5 WHERE leader = 'B' AND tick = 3")
    assert "columns" in {one.check for one in audit(paths)}


def test_unaltered_journals_have_no_findings(tmp_path: Path) -> None:
    assert audit(honest().write(tmp_path)) == []


@pytest.mark.spark
@pytest.mark.filterwarnings(PANDAS)
@pytest.mark.parametrize("is_tiny", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_spark_and_duckdb_find_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tiny: bool
) -> None:
    """The journal has all kinds of faults at once, and both engines report the same findings, to the letter."""
    if not is_tiny:
        monkeypatch.setattr(on_spark, "TINY_BYTES", 0)
    world = honest(90)
    for tick, (forge, _) in enumerate(FORGERIES, start=6):
        world.change(("B", tick), forge)
    world.change(("C", 5), lambda draft: replace(draft, base={**draft.base, "A": 1}))
    world.change(("C", 7), lambda draft: replace(draft, access_set=touching("x07")))
    world.change(("A", 9), lambda draft: replace(draft, joined=(world.drafts["A", 8].command,)))
    (adopted,) = [draft for draft in world.drafts.values() if draft.adopted_from]
    world.change(adopted.place, lambda draft: replace(draft, changes=b"\x82\x80\x80"))
    paths = world.write(tmp_path)
    spoil(paths[1], "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = 5")
    spoil(paths[1], "DELETE FROM bedrockish_joined WHERE seq > 9")
    spoil(paths[2], "UPDATE bedrockish_journal SET body = x'00' WHERE leader = 'A' AND tick = 6")
    spoil(paths[2], "UPDATE bedrockish_journal SET repeat = 1, command = 'x' WHERE leader = 'A' AND tick = 11")
    spoil(paths[2], "UPDATE bedrockish_journal SET hash = zeroblob(32) WHERE leader = 'B' AND tick = 12")
    spoil(paths[0], "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick > 20")
    found = {one.check for one in both(spark, paths)}
    assert found >= {"bytes", "columns", "density", "hash", "causality", "closure", "quorum", "txid", "command"}
    assert found >= {"writes", "fork", "lost", "conflict"}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings(PANDAS)
@pytest.mark.parametrize("what", [*SEEN, *UNSEEN])
def test_spark_finds_each_tampering_as_duckdb_does(spark: SparkSession, tmp_path: Path, what: str) -> None:
    (tmp_path / "tampered").mkdir()
    law, deed = SEEN[what] if what in SEEN else ("", UNSEEN[what])
    sound = make(tmp_path / "sound")
    anchors = anchored(sorted(sound.glob("*.db")))
    with tampered(sound, tmp_path / "tampered", deed) as paths:
        found = {one.check for one in both(spark, paths)}
        assert law in found if law in QUERIES else not found
        if what in UNSEEN:
            assert bool(hold(paths, anchors).findings) == (what not in UNANCHORED)


def test_an_export_is_audited_like_the_files(tmp_path: Path) -> None:
    """Two nodes are given as exports and one as a file; faults in the exports are found and named."""
    world = honest(60)
    first = world.commit("A", touching("fresh"))
    second = world.commit("B", touching("other"))
    assert first is not None
    assert second is not None
    world.change(second.place, lambda draft: replace(draft, access_set=touching("fresh", "other")))
    world.settle()
    paths = world.write(tmp_path)
    for path in paths[:2]:
        with open_feed(str(path)) as feed:
            export(feed, str(tmp_path / "out"), step=30)
    for path in (tmp_path / "out" / "commits" / "node=A").iterdir():  # as earlier versions wrote them
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["joined"]), path)
    found = audit([tmp_path / "out", paths[2]])
    assert [(f.check, f.leader, f.tick, f.key) for f in found] == [("conflict", *second.place, key("fresh").hex())]


def test_audit_finds_a_removed_entry(tmp_path: Path) -> None:
    paths = honest(60).write(tmp_path)
    spoil(paths[1], "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = 5")
    (found,) = audit(paths, "density")
    assert (found.level, found.node, found.leader, found.tick) == (FAULT, "B", "A", 5)
    assert found.text == "A5 is missing"
    assert audit(paths, "hash", "link") == []


def test_cut_tail_of_an_own_timeline_is_found_through_the_other_nodes(tmp_path: Path) -> None:
    world = honest(60)
    paths = world.write(tmp_path)
    head = world.applied("A")["A"]
    spoil(paths[0], "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = ?", head)
    (found,) = audit(paths, "density", "hash", "link", "fork", "lost")
    assert (found.level, found.node, found.leader, found.tick) == (FAULT, "A", "A", head)


def test_audit_finds_a_flipped_byte(tmp_path: Path) -> None:
    paths = honest(60).write(tmp_path)
    spoil(
        paths[2],
        "UPDATE bedrockish_journal SET body = CAST(substr(body, 1, length(body) - 1) || x'61' AS BLOB)"
        " WHERE leader = 'B' AND tick = 4",
    )
    found = audit(paths, "hash", "link")
    assert [(f.node, f.leader, f.tick) for f in found] == [("C", "B", 4)]
    assert found[0].text.startswith("B4 does not match its hash")


def test_audit_finds_a_raised_after_vector(tmp_path: Path) -> None:
    world = honest(60)
    world.change(("B", 6), lambda draft: replace(draft, base={**draft.base, "A": draft.base["A"] + 3}))
    found = audit(world.write(tmp_path), "hash", "link", "causality", "closure")
    assert {(f.check, f.leader, f.tick) for f in found} >= {("causality", "B", 6)}
    assert any(f.text.startswith("B6 was applied before") for f in found)


def test_audit_finds_an_after_vector_beyond_the_journal(tmp_path: Path) -> None:
    world = honest(60)
    world.change(("B", 6), lambda draft: replace(draft, base={**draft.base, "A": 900}))
    found = [f for f in audit(world.write(tmp_path), "causality", "clock", "closure") if f.tick == 6]
    assert [(f.node, f.text) for f in found] == [("A, B, C", "B6 had seen A900, which is not in this journal")]


def _unclosed(draft: Draft) -> Draft:
    return replace(draft, base={**draft.base, "A": 1})


def test_audit_finds_an_incomplete_after_vector(tmp_path: Path) -> None:
    world = World()
    for leader in ("A", "A", "B", "C"):
        assert world.commit(leader, touching(f"{leader}-own"))
        world.settle()
    world.change(("C", 1), _unclosed)
    (found,) = audit(world.write(tmp_path), "causality", "clock", "closure")
    assert found.text == "C1 had seen B1, but not A2, which B1 had seen"


def test_audit_finds_a_clock_below_its_base(tmp_path: Path) -> None:
    world = World()
    for leader in ("A", "B"):
        assert world.commit(leader, touching(f"{leader}-own"))
        world.settle()
    world.change(("B", 1), lambda draft: replace(draft, txid=Txid(START_MS << 22, "B")))
    (found,) = audit(world.write(tmp_path), "causality", "clock", "closure")
    assert found.text == "B1 has a clock that is not later than all clocks up to A1"


FORGERIES: list[tuple[Callable[[Draft], Draft], str]] = [
    (lambda draft: replace(draft, quorum={"B": draft.tick}), "shows approvals of 1 of 3 voters and needs 2"),
    (lambda draft: replace(draft, quorum={**draft.quorum, "Z": 3}), "counts Z, which is not a voter of its membership"),
    (lambda draft: replace(draft, quorum={**draft.quorum, "B": 2}), "lacks the approval of its own leader at tick 8"),
    (lambda draft: replace(draft, config=9), "counts by membership version 9, which no given journal holds"),
]


def test_audit_finds_forged_approvals(tmp_path: Path) -> None:
    world = honest(60)
    for tick, (forge, _) in enumerate(FORGERIES, start=6):
        world.change(("B", tick), forge)
    found = audit(world.write(tmp_path), "quorum")
    assert {(f.leader, f.tick, f.node) for f in found} == {("B", tick, "A, B, C") for tick in range(6, 10)}
    assert {f.text for f in found} == {
        *(f"B{tick} {text}" for tick, (_, text) in enumerate(FORGERIES, start=6)),
        "B9 counts by membership version 9, but version 0 was in force at its base",
    }


def test_audit_finds_an_old_membership_after_a_change(tmp_path: Path) -> None:
    world = honest(60)
    place = max(place for place in world.drafts if place[0] == "C")
    world.change(place, lambda draft: replace(draft, config=0))
    found = audit(world.write(tmp_path), "quorum", "approval", "members")
    assert [(f.leader, f.tick) for f in found] == [place]
    assert "counts by membership version 0, but version 1 was in force at its base" in found[0].text


@pytest.mark.slow
def test_approval_beyond_the_approvers_file_is_reported_as_information(tmp_path: Path) -> None:
    world = honest(60)
    world.change(("B", 6), lambda draft: replace(draft, quorum={"B": 6, "C": 5000}))
    (found,) = audit(world.write(tmp_path), "quorum", "approval", "members")
    assert found.level == INFORMATION
    assert found.text.startswith("C approved B6 at its tick 5000")


def test_swapped_entries_are_named(tmp_path: Path) -> None:
    paths = honest(60).write(tmp_path)
    spoil(
        paths[0],
        """UPDATE bedrockish_journal SET leader = CASE leader WHEN 'A' THEN 'B' ELSE 'A' END
        WHERE tick = 7 AND leader IN ('A', 'B')""",
    )
    found = audit(paths, "columns", "link", "fork")
    assert {(f.check, f.leader, f.tick) for f in found} >= {
        ("columns", "A", 7),
        ("columns", "B", 7),
        ("link", "A", 7),
        ("fork", "B", 7),
    }
    assert "A7 has the leader A in its column and B in its bytes" in [f.text for f in found]


def test_audit_finds_concurrent_writes_of_one_key(tmp_path: Path) -> None:
    world = honest(60)
    first = world.commit("A", touching("fresh"))
    second = world.commit("B", touching("other"))
    assert first is not None
    assert second is not None
    world.change(second.place, lambda draft: replace(draft, access_set=touching("fresh", "other")))
    world.settle()
    (found,) = audit(world.write(tmp_path), "causality", "closure", "conflict")
    assert (found.leader, found.tick, found.table, found.key) == (*second.place, "t:accounts", key("fresh").hex())
    assert found.text.startswith(f"B{second.tick} and A{first.tick} are both committed, and neither had seen the other")


def test_audit_finds_a_write_concurrent_with_a_read(tmp_path: Path) -> None:
    """The reader or the writer may be first by clock, and the read may be a key or a range."""
    world = honest(60)
    expected = set()
    for number, (reader_first, ranged) in enumerate([(True, True), (True, False), (False, True), (False, False)]):
        name = f"fresh{number}"
        first, second = world.commit("A", touching(f"A{name}")), world.commit("B", touching(f"B{name}"))
        assert first is not None
        assert second is not None
        reader, writer = (first, second) if reader_first else (second, first)
        read = touching(ranges=[(name, name + "~")]) if ranged else touching(reads=[name])
        world.change(reader.place, partial(replace, access_set=read))
        world.change(writer.place, partial(replace, access_set=touching(name)))
        world.settle()
        expected.add((*second.place, key(name).hex(), f"B{second.tick} and A{first.tick} are both committed"))
    found = audit(world.write(tmp_path), "conflict")
    assert {(f.leader, f.tick, f.key, f.text.partition(",")[0]) for f in found} == expected
    assert len(found) == len(expected)


def test_audit_finds_overlapping_ranges(tmp_path: Path) -> None:
    """A write of a whole range, as by a schema change, overlaps a range that another commit read."""
    world = World()
    first, second = world.commit("A", touching("a")), world.commit("B", touching("b"))
    assert first is not None
    assert second is not None
    world.change(first.place, partial(replace, access_set=AccessSet(write_ranges=((b"t:", b"t;"),))))
    world.change(second.place, partial(replace, access_set=AccessSet(read_ranges=((key("k"), key("l")),))))
    world.settle()
    (found,) = audit(world.write(tmp_path), "conflict")
    assert (found.leader, found.tick, found.table, found.key) == ("B", 1, "t:accounts", key("k").hex())


@pytest.mark.slow
def test_split_halves_that_both_committed_are_found_together(tmp_path: Path) -> None:
    world = honest(60)
    assert world.commit("A", touching("fresh"))
    second = world.commit("B", touching("other"))
    assert second is not None
    world.change(second.place, lambda draft: replace(draft, access_set=touching("fresh")))
    found = audit(world.write(tmp_path), "conflict")
    assert [f.key for f in found] == [key("fresh").hex()]


def test_audit_finds_a_command_in_two_transactions(tmp_path: Path) -> None:
    world = honest(60)
    first = world.commit("A", touching("fresh"))
    assert first is not None
    second = world.commit("B", touching("other"), command=first.command)
    assert second is not None
    (found,) = audit(world.write(tmp_path), "txid", "command")
    assert (found.leader, found.tick) == second.place
    assert found.text == f"the command {first.command} was applied as {first.txid} and as {second.txid}"


@pytest.mark.parametrize("joined", [("x", "twice"), ("twice",)])
def test_command_applied_twice_is_found_among_joined_commands(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The command joined one transaction, and is the first of another or joined that, too."""
    world = honest(60)
    first = world.commit("A", touching("fresh"), joined=joined)
    assert first is not None
    command = "twice" if len(joined) > 1 else "y"
    second = world.commit("B", touching("other"), command=command, joined=() if command == "twice" else ("twice",))
    assert second is not None
    (found,) = audit(world.write(tmp_path), "txid", "command")
    assert (found.leader, found.tick) == second.place
    assert found.text == f"the command twice was applied as {first.txid} and as {second.txid}"


def test_command_that_is_in_one_transaction_twice_is_found(tmp_path: Path) -> None:
    world = honest(60)
    found = world.commit("A", touching("fresh"), command="again", joined=("other", "again"))
    assert found is not None
    world.settle()
    (told,) = audit(world.write(tmp_path), "txid", "command")
    assert (told.leader, told.tick, told.text) == (*found.place, f"{found.txid} has a command twice")


def test_audit_finds_a_repeat_without_its_original(tmp_path: Path) -> None:
    paths = honest(60).write(tmp_path)
    spoil(paths[1], "UPDATE bedrockish_journal SET repeat = 1 WHERE leader = 'A' AND tick = 5")
    (found,) = audit(paths, "txid", "command")
    assert (found.node, found.leader, found.tick) == ("B", "A", 5)
    assert found.text == f"A5 repeats {found.txid}, which was not applied before it"


def test_audit_finds_a_transaction_applied_twice(tmp_path: Path) -> None:
    """The second label of an adopted transaction, which must change no data, is marked as the first."""
    paths = honest(90).write(tmp_path)
    spoil(paths[2], "UPDATE bedrockish_journal SET repeat = 0 WHERE repeat = 1")
    (found,) = audit(paths, "txid", "command")
    assert (found.node, found.text) == ("C", f"{found.txid} was applied 2 times")


def test_audit_finds_two_bodies_of_one_transaction(tmp_path: Path) -> None:
    """The nodes agree on every place, but the adopter committed something else than its leader."""
    world = honest(90)
    (adopted,) = [draft for draft in world.drafts.values() if draft.adopted_from]
    world.change(adopted.place, lambda draft: replace(draft, changes=b"\x82\x80\x80"))
    found = audit(world.write(tmp_path), "fork", "txid")
    assert [(f.check, f.text) for f in found] == [("txid", f"{adopted.txid} stands for 2 different transactions")]


def test_audit_finds_a_differing_entry_of_one_node(tmp_path: Path) -> None:
    world = honest(60)
    paths = world.write(tmp_path / "right")
    head = world.applied("C")["A"]
    world.change(("A", head - 1), lambda draft: replace(draft, changes=draft.changes + b"\0"))
    paths[2] = world.write(tmp_path / "wrong")[2]
    found = audit(paths, "hash", "link", "fork")
    assert [(f.check, f.node, f.leader, f.tick) for f in found] == [("fork", "A, B, C", "A", head - 1)]
    assert found[0].text.endswith("2 places of the timeline differ")


def test_lagging_node_is_reported_as_information(tmp_path: Path) -> None:
    world = honest(60)
    draft = world.commit("A", touching("fresh"))
    assert draft is not None
    found = audit(world.write(tmp_path), "fork", "lost")
    assert [(f.level, f.node, f.leader, f.tick) for f in found] == [
        (INFORMATION, "B", "A", draft.tick),
        (INFORMATION, "C", "A", draft.tick),
    ]


def test_audit_needs_the_whole_timeline_after_a_retirement(tmp_path: Path) -> None:
    """Vectors no longer name the timeline; without the membership that retired it, they lack it."""
    assert audit(retiring().write(tmp_path / "sound")) == []
    found = audit(retiring({}).write(tmp_path / "unsaid"))
    assert {one.check for one in found} == {"closure", "conflict"}
