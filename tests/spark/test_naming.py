"""Findings name the transaction, the table and the row, also for entries that one journal lacks or has altered."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bedrockish.cli.audit import _about, _readable
from bedrockish_journal.audit.report import named
from bedrockish_journal.model.key_text import key_text
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.inputs import find_inputs
from tests.spark.test_audits import spoil
from tests.spark.worlds import World, honest, key


@pytest.fixture
def world() -> World:
    return honest(60)


def finding(node: str, leader: str | None, tick: int | None, txid: str | None = None) -> Finding:
    return Finding("check", node, leader, tick, txid, text="text")


@pytest.mark.parametrize("exported", [False, True])
def test_altered_entry_is_named_from_other_journals(world: World, tmp_path: Path, exported: bool) -> None:
    paths = [str(path) for path in world.write(tmp_path)]
    spoil(Path(paths[1]), "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = 5")
    spoil(Path(paths[1]), "UPDATE bedrockish_journal SET body = x'00' WHERE leader = 'A' AND tick = 6")
    if exported:
        with open_feed(paths[0]) as feed:
            export(feed, str(tmp_path / "out"))
        paths = [str(tmp_path / "out"), paths[1]]
    inputs = find_inputs(paths)
    for tick in (5, 6):
        draft = world.drafts["A", tick]
        (one,) = named(inputs, [finding("B", "A", tick)])
        first, *more = sorted(draft.access_set.write_points)
        assert (one.txid, one.table) == (str(draft.txid), "accounts")
        assert one.key == f'{{"id":{key_text(first)}}}' + (f" and {len(more)} more" if more else "")


def test_finding_without_row_or_place_gets_no_row_name(world: World, tmp_path: Path) -> None:
    inputs = find_inputs([str(path) for path in world.write(tmp_path)])
    schema = str(world.drafts["A", 1].txid)
    found = [finding("A", None, None), finding("A", "A", 1), finding("A", "Z", 1), finding("B", "A", 2, "A-0")]
    assert [(one.txid, one.table, one.key) for one in named(inputs, found)] == [
        (None, None, None),
        (schema, None, None),
        (None, None, None),
        ("A-0", None, None),  # another transaction has that place
    ]


def test_keys_in_findings_are_printed_as_tables_and_values() -> None:
    conflict = replace(finding("A", "A", 7, "A-1"), check="conflict", table="t:accounts", key=key("seven").hex())
    shown = _readable(asdict(conflict))
    assert shown["key_bytes"] == key("seven").hex()
    assert _about({**shown, "key": "7", "text": "A7 and B3 both touch t:accounts"}) == " (A-1: t:accounts 7)"
    assert _about({"txid": "A-1", "table": None, "key": None, "text": "A-1 was applied 2 times"}) == ""
