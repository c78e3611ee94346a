"""The backup drill: a good backup passes, and the report names the faults of a bad one."""

import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from bedrockish.cli.backup import backup as command
from bedrockish_journal.model.errors import MomentError
from bedrockish_journal.verify.drill import drill
from bedrockish_journal.verify.replay import digest
from tests.journal.test_restore import Lived, complete, copy, prune


@pytest.fixture
def lived(tmp_path: Path) -> Iterator[Lived]:
    lived = Lived(tmp_path, 2)
    yield lived
    lived.world.close()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["verify", *map(str, arguments)])


def spoil(path: Path, *statements: str) -> None:
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement).fetchall()
        assert db.changes()
    db.close()


def test_drill_proves_a_sound_backup_by_its_journal(lived: Lived) -> None:
    found = drill(lived.backup)
    assert (found.faults, found.unproven, found.digest) == ([], "", digest(lived.backup))
    assert found.entries > 30
    result = run(lived.backup, "--proven")
    assert (result.exit_code, "equal to a replay of its journal; digest" in result.output) == (0, True), result.output
    data = json.loads(run(lived.backup, "--json").output)
    assert (data["good"], data["digest"], data["latest"]) == (True, found.digest, found.latest)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE note SET text = 'other' WHERE rowid = (SELECT min(rowid) FROM note)", "tables: "),
        ("DELETE FROM account WHERE id = (SELECT max(id) FROM account)", "tables: "),
        ("UPDATE bedrockish_journal SET body = CAST(body || x'00' AS BLOB) WHERE seq = 20", "hash: "),
        ("UPDATE bedrockish_journal SET body = body || x'90' WHERE seq = 20", "bytes: "),
        ("DELETE FROM bedrockish_journal WHERE seq = 20", "density: "),
    ],
)
def test_backup_drill_names_the_damaged_table(lived: Lived, statement: str, words: str) -> None:
    spoil(lived.backup, statement)
    faults = drill(lived.backup).faults
    assert any(fault.startswith(words) for fault in faults), faults
    result = run(lived.backup)
    assert (result.exit_code, f"{lived.backup}: {words}" in result.output) == (1, True), result.output


def test_backup_drill_finds_a_damaged_page(lived: Lived) -> None:
    db = apsw.Connection(str(lived.backup))
    page = db.execute("SELECT max(pageno) FROM dbstat WHERE name = 'bedrockish_journal_txid'").get
    size = db.pragma("page_size")
    db.close()
    with lived.backup.open("r+b") as file:
        file.seek(page * size - 200)  # where the entries of the index are
        file.write(bytes(200))
    faults = drill(lived.backup).faults
    assert faults
    assert all(fault.startswith("pages: ") for fault in faults), faults


def test_backup_with_a_short_journal_is_proven_by_an_older_backup(lived: Lived, tmp_path: Path) -> None:
    short = copy(lived.path("B"), tmp_path / "short.db")
    prune(short, min(entry.txid.clock for entry in lived.entries.values()) + 3)
    assert "was removed" in drill(short).unproven
    result = run(short)
    assert (result.exit_code, "not compared with a journal: the beginning" in result.output) == (0, True)
    assert run(short, "--proven").exit_code == 1
    assert "--older" in run(short, "--proven").output
    assert run(short, "--proven", "--older", lived.backup).exit_code == 0
    spoil(short, "UPDATE account SET owner = 'thief' WHERE id = (SELECT max(id) FROM account)")
    assert not drill(short).faults, "the journal has nothing to say of a row from before"
    assert "thief" in drill(short, older=lived.backup).faults[0]
    with pytest.raises(MomentError, match=r"has commits that .* has not; give an older backup"):
        drill(lived.backup, older=short)


def test_too_old_backup_ends_with_status_1(lived: Lived) -> None:
    complete(lived.backup, lived.last)
    assert run(lived.backup, "--younger-than", "900000d").exit_code == 0
    result = run(lived.backup, "--younger-than", "25h")
    assert (result.exit_code, "and should be younger than 25 h" in result.output) == (1, True), result.output
    assert "is not a duration" in run(lived.backup, "--younger-than", "soon").output


def test_file_written_during_the_drill_is_refused(lived: Lived) -> None:
    def say(what: str) -> None:
        if what == "restoring":
            spoil(lived.backup, "DELETE FROM bedrockish_journal WHERE seq = (SELECT max(seq) FROM bedrockish_journal)")

    with pytest.raises(MomentError, match="is being written; make a backup of it"):
        drill(lived.backup, say=say)
