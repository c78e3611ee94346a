"""Anchor files, whole and hostile."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bedrockish.cli.main import main
from bedrockish_journal.model.anchor import FIRST, Anchor, AnchorError, line_hash, read_statement
from bedrockish_journal.verify.anchored import read_anchors
from tests.journal.anchoring import anchored, hold
from tests.journal.tampering import make


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make(tmp_path_factory.mktemp("anchors") / "sound").glob("*.db"))


@pytest.fixture
def one(sound: list[Path]) -> Anchor:
    """Return an anchor of three voters."""
    said = replace(anchored(sound)[0].statement, voters=("A", "B", "C"))
    return Anchor(said.text(), said)


def after(last: Anchor) -> Anchor:
    said = replace(last.statement, number=last.statement.number + 1, previous=line_hash(last.line().encode()))
    return Anchor(said.text(), said)


def write(path: Path, *anchors: Anchor) -> Path:
    path.write_text("".join(anchor.line() + "\n" for anchor in anchors))
    return path


def test_a_file_is_read_as_it_was_written(one: Anchor, tmp_path: Path) -> None:
    """The first line is as a release before 0.3.0 wrote it."""
    signed = replace(one, confirmed={"A": {"certificates": "PEM", "signature": "00"}, "B": None})
    both = [signed, replace(after(signed), confirmed={"A": None, "B": None})]
    assert read_anchors(write(tmp_path / "anchors", *both)) == both
    assert read_anchors(write(tmp_path / "none")) == []


def test_anchor_file_with_a_removed_changed_or_inserted_line_is_refused(one: Anchor, tmp_path: Path) -> None:
    second = after(one)
    third = after(second)
    file = tmp_path / "anchors"
    for wrong in ((second,), (one, third), (one, one), (second, one), (after(after(one)), one)):
        with pytest.raises(AnchorError, match="does not continue"):
            read_anchors(write(file, *wrong))
    other = replace(one, confirmed={"A": None})
    with pytest.raises(AnchorError, match=r"line 2 .* does not continue"):
        read_anchors(write(file, other, second))
    foreign = replace(second.statement, cluster="another")
    with pytest.raises(AnchorError, match="is of another cluster"):
        read_anchors(write(file, one, Anchor(foreign.text(), foreign)))


def test_hostile_anchor_files_are_refused(one: Anchor, tmp_path: Path) -> None:
    file = tmp_path / "anchors"
    line = one.line()
    said = json.loads(one.text)
    hostile = [
        "", "{}", "[]", "null", "7", '{"statement": 1}', "[" * 100_000, '{"statement": "{}", "signatures": {}}',
        json.dumps({"statement": one.text}), json.dumps({"statement": one.text, "signatures": [1]}),
        json.dumps({"statement": one.text, "signatures": {"A": 7}}),
        line.replace('{"statement"', '{ "statement"'),
        *(
            json.dumps({"statement": json.dumps(said | change), "signatures": {}})
            for change in (
                {"anchor": 2}, {"anchor": True}, {"heads": 7}, {"heads": {"A": [0, FIRST]}}, {"heads": {"A": [1, "x"]}},
                {"heads": {"A": 1}}, {"voters": ["A", "A"]}, {"voters": "A"}, {"voters": [1]}, {"number": 1.0},
                {"number": -1}, {"previous": "x"}, {"founders": None}, {"cluster": 1}, {"wall_ms": "now"},
            )
        ),
    ]  # fmt: skip
    for text in hostile:
        file.write_text(text + "\n")
        with pytest.raises(AnchorError, match=r"line 1 of .* is not an anchor"):
            read_anchors(file)
    for data, why in (
        (b"\xff\xfe\n", "is not an anchor"),
        (line.encode(), "ends within line 1"),
        (b"\0" * 99, "ends with"),
    ):
        file.write_bytes(data)
        with pytest.raises(AnchorError, match=why):
            read_anchors(file)
    with pytest.raises(AnchorError, match="cannot be read"):
        read_anchors(tmp_path)
    with pytest.raises(ValueError, match="characters"):
        read_statement(" " * 2_000_000)


def test_voters_of_an_anchor_are_those_of_the_journal(sound: list[Path]) -> None:
    """Otherwise one node could name itself as the only voter, and confirm alone."""
    [true] = anchored(sound)
    assert hold(sound, [true]).findings == []
    said = replace(true.statement, voters=("A",))
    assert {one.node for one in hold(sound, [Anchor(said.text(), said)]).findings} == {path.stem for path in sound}


def test_anchor_accepts_a_lagging_node_and_detects_a_lost_end(sound: list[Path]) -> None:
    [true] = anchored(sound)
    tick, digest = true.statement.heads["A"]
    said = replace(true.statement, heads={**true.statement.heads, "A": (tick + 1, digest), "X": (1, digest)})
    told = hold(sound, [Anchor(said.text(), said)])
    assert [(one.leader, one.tick) for one in told.findings] == [("A", tick + 1), ("X", 1)]
    assert all("the end of the timeline is gone" in one.text for one in told.findings)


def test_verify_compares_files_with_anchors(sound: list[Path], tmp_path: Path) -> None:
    [true] = anchored(sound)
    good = str(write(tmp_path / "good", true))
    bad = replace(true.statement, founders="0" * 64)
    wrong = str(write(tmp_path / "bad", Anchor(bad.text(), bad)))
    files = [str(path) for path in sound]
    command = ["journal", "verify", *files]
    done = CliRunner().invoke(main, [*command, "--anchor", good])
    assert done.exit_code == 0, done.output
    assert "1 anchors with" in done.output
    assert "anchor (--anchor)" not in done.output
    done = CliRunner().invoke(main, [*command, "--anchor", wrong])
    assert done.exit_code == 1
    assert "the founding membership differs from that of anchor 1" in done.output
    done = CliRunner().invoke(main, [*command, "--anchor", good, "--json"])
    assert json.loads(done.output)["holds"]
    done = CliRunner().invoke(main, [*command, "--anchor", str(sound[0])])
    assert done.exit_code == 1
    assert "is not an anchor" in done.output
    assert CliRunner().invoke(main, command).output.count("anchor (--anchor)") == 1
