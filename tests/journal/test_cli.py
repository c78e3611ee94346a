"""``bedrockish journal``: its output and its exit status."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import bedrockish
from bedrockish.cli.journal import journal
from bedrockish_journal.model.errors import FileMissingError, TargetExistsError
from bedrockish_journal.verify import differences
from bedrockish_journal.verify.replay import digest
from tests.journal.world import NODES, World
from tools.cluster import free_ports


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, 2, NODES)
    world.begin()
    for name, statement in (
        ("A", "INSERT INTO account(id, owner, balance) VALUES (42, 'Alice', 10)"),
        ("A", "UPDATE account SET balance = 7.5 WHERE id = 42"),
        ("C", "INSERT INTO pair VALUES ('p', 1, x'00')"),
    ):
        world.commit(name, world.transaction(name, "rows", world.nodes[name].execute([statement])))
        world.settle()
    yield world
    world.close()


def run(*args: object) -> Result:
    return CliRunner().invoke(journal, [str(arg) for arg in args])


def test_show_prints_labels_newest_last(world: World) -> None:
    result = run("show", world.paths[1])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("A1: COMMIT A-10000000001=[1, 0, 0, 0, 0] after [0, 0, 0, 0, 0] CREATE TABLE account(")
    assert lines[1:] == [
        "A2: COMMIT A-10000000003=[2, 0, 0, 0, 0] after [1, 0, 0, 0, 0] account 42",
        "A3: COMMIT A-10000000004=[3, 0, 0, 0, 0] after [2, 0, 0, 0, 0] account 42",
        "C1: COMMIT C-10000000005=[3, 0, 1, 0, 0] after [3, 0, 0, 0, 0] pair ('p', 1)",
    ]


def test_show_filters_by_leader_tick_and_limit(world: World) -> None:
    assert [line[:3] for line in run("show", world.paths[0], "--leader", "A", "--limit", 2).output.splitlines()] == [
        "A2:",
        "A3:",
    ]
    lines = run(
        "show", world.paths[0], "--leader", "A", "--from-tick", 2, "--limit", 1, "--changes"
    ).output.splitlines()
    assert lines[0].startswith("A2:")
    assert lines[1] == "    INSERT account 42 id=42, owner='Alice', balance=10.0, extra=None, twice=20.0"
    changed = run("show", world.paths[0], "--from-tick", 3, "--changes").output
    assert "    UPDATE account 42 balance: 10.0 -> 7.5, twice: 20.0 -> 15.0\n" in changed
    assert run("show", world.paths[0], "--leader", "Z").output == ""
    assert run("show", world.paths[0], "--limit", 0).exit_code == 2


def test_show_says_how_many_commands_share_a_transaction_and_which(world: World) -> None:
    alone = world.transaction("B", "rows", world.nodes["B"].execute(["DELETE FROM account"]), command="one")
    world.commit("B", replace(alone, joined=(("two", b""), ("three", b"")), body=b""))
    (line,) = run("show", world.paths[1], "--leader", "B").output.splitlines()
    assert line.endswith(" account 42 (3 commands)")
    assert run("show", world.paths[1], "--leader", "B", "--changes").output.splitlines()[1:] == [
        "    commands one, two, three",
        "    DELETE account 42 id=42, owner='Alice', balance=7.5, extra=None, twice=15.0",
    ]


def test_verify_reports_that_the_laws_hold(world: World) -> None:
    result = run("verify", *world.paths)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("the journals hold: 20 entries in 5 files\n")
    assert "[3, 0, 1, 0, 0]" in result.output


def test_verify_looks_at_the_tables_when_asked(world: World) -> None:
    """Without the option, the report says that tables were not compared; with it, it names the row that differs."""
    assert "the tables were not compared with the journals" in run("verify", *world.paths).output
    result = run("verify", "--tables", *world.paths[:2])
    assert result.exit_code == 0, result.output
    assert result.output.count("the tables equal a replay of the journal") == 2
    assert "not compared" not in result.output
    world.nodes["B"].db.execute(
        "UPDATE account SET balance = balance + 1 WHERE rowid = (SELECT min(rowid) FROM account)"
    )
    assert run("verify", *world.paths[:2]).exit_code == 0
    result = run("verify", "--tables", *world.paths[:2])
    assert result.exit_code == 1
    assert f"{world.paths[1]}: tables: " in result.output
    assert "balance is 8.5 and should be 7.5" in result.output
    assert json.loads(run("verify", "--json", *world.paths[:2]).output)["tables"] is None
    packed = json.loads(run("verify", "--json", "--tables", *world.paths[:2]).output)["tables"]
    assert [len(one["differences"]) for one in packed.values()] == [0, 1]


def test_verify_reads_texts_behind_a_nul(world: World) -> None:
    """SQLite's quote() ends a text there, so tables that differed only behind a NUL passed verification."""
    world.nodes["B"].db.execute("UPDATE account SET owner = owner || char(0) || '!' WHERE id = 42")
    result = run("verify", "--tables", world.paths[1])
    assert result.exit_code == 1, result.output
    assert "in the row 42 of account, owner is CAST(X'416c6963650021' AS TEXT) and should be 'Alice'" in result.output


def test_journal_of_a_cluster_that_began_with_tables_is_no_fault(tmp_path: Path) -> None:
    """A replay makes none of these tables; without other tables it writes an empty file."""
    path, config = tmp_path / "A.db", tmp_path / "A.toml"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t(x)")
    (port,) = free_ports(1)
    config.write_text(f'node = "A"\ndatabase = "A.db"\nlisten = "127.0.0.1:{port}"\n')
    with bedrockish.node(config):
        pass
    verified = run("verify", "--tables", path)
    assert (verified.exit_code, verified.stderr) == (1, "")
    assert f"{path}: the tables were not compared: the cluster began with a database" in verified.output
    told = run("replay", path, "--to", tmp_path / "again.db")
    assert "lacks the tables with which the cluster began" in told.stderr


def test_unexplained_table_difference_fails_verification(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.nodes["B"].db.execute("UPDATE account SET balance = balance + 1")
    monkeypatch.setattr(differences, "_all", lambda _db: iter(()))
    result = run("verify", "--tables", world.paths[1])
    assert result.exit_code == 1, result.output
    assert differences.UNTOLD in result.output


def test_verify_ends_with_status_1_on_findings(world: World) -> None:
    world.nodes["B"].db.execute("UPDATE bedrockish_journal SET hash = zeroblob(32) WHERE leader = 'C'")
    result = run("verify", *world.paths[:3])
    assert result.exit_code == 1
    assert "B: hash: C1 is stored with the hash 000000000000…, but its bytes have" in result.output
    assert result.output.endswith("2 findings\n")
    result = run("verify", "--json", *world.paths[:3])
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert report["holds"] is False
    assert {finding["check"] for finding in report["findings"]} == {"hash", "fork"}
    assert report["counts"][0]["applied"] == {"A": 3, "C": 1}


def test_verify_names_lagging_nodes(world: World) -> None:
    world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute([])))
    result = run("verify", *world.paths[:2])
    assert result.exit_code == 0
    assert "B lacks A4\n" in result.output


def test_replay_prints_the_digest_of_its_result(world: World, tmp_path: Path) -> None:
    target = tmp_path / "replayed.db"
    result = run("replay", *world.paths[:2], "--to", target, "--order", "random", "--seed", 5)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"{digest(world.paths[0])}  {target}"
    assert "4 entries (0 second labels), 3 rows" in result.output
    again = run("replay", world.paths[0], "--to", target)
    assert isinstance(again.exception, TargetExistsError)


def test_digest_ends_with_status_1_when_files_differ(world: World) -> None:
    result = run("digest", *world.paths)
    assert result.exit_code == 0
    assert len({line.split()[0] for line in result.output.splitlines()}) == 1
    world.nodes["A"].db.execute("DELETE FROM pair")
    result = run("digest", *world.paths)
    assert result.exit_code == 1
    assert "2 different contents" in result.output


@pytest.mark.parametrize("command", ["show", "verify", "digest"])
def test_missing_file_is_reported_in_words(command: str, tmp_path: Path) -> None:
    result = run(command, tmp_path / "none.db")
    assert isinstance(result.exception, FileMissingError)
    assert "no such file" in str(result.exception)
    result = run(command, "bedrockish://127.0.0.1:1")
    assert str(result.exception) == "a file is needed, and not a URL; 'bedrockish audit' reads running nodes"


def test_every_command_has_help() -> None:
    for command in ((), ("show",), ("verify",), ("replay",), ("digest",)):
        assert run(*command, "--help").exit_code == 0
