"""The project's own tools: the lock, the data, and the check of the demo."""

import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bedrockish.engine.storage.database_file import SQLITE_VERSION_MIN
from bedrockish.errors import UsageError
from bedrockish.transfer.load_database import BATCH_ROWS, batches, open_source, read_plan
from tests.test_tidy import ROOT
from tools.bench import WORKS, Draw, measure_sqlite, quantile, scenarios
from tools.bootstrap import read_lock, wanted_groups
from tools.bounds import oldest
from tools.cluster import DemoError, LocalCluster, clean_environment
from tools.demonstration.check import Check, check_file
from tools.demonstration.cluster import DATABASE
from tools.demonstration.work import ACCOUNTS, GIVE, NOTE, OPEN, OPENING_BALANCE, SCHEMA, TAKE, Tally, Transfer, draw
from tools.lock import markers
from tools.scenarios import etcd, galera
from tools.scenarios.engine import measure

IMPORT_WITHOUT = """  # the scenarios that are named, where some packages are not installed
import importlib, sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
absent, known = sys.argv[1].split(), packages_distributions()
class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if any(one.lower().replace("_", "-") in absent for one in known.get(name.partition(".")[0], ())):
            return None
        return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Present
for name in sys.argv[2:]:
    importlib.import_module("tools.scenarios." + name)
"""


def test_missing_etcd_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "apt-get install etcd-server" in etcd.missing()


def test_requests_of_etcd_have_its_encoding() -> None:
    assert etcd._put(b"a", b"bc").hex() == "0a0161" + "12026263"
    assert (etcd._range(b"a") + etcd.SERIALIZABLE).hex() == "0a0161" + "3801"


def test_lock_file_pins_every_declared_dependency() -> None:
    """Each dependency of each extra is in the lock, with one exact version."""
    groups = read_lock()
    assert list(groups) == ["runtime", "spark", "dev", "programs"]
    pins = [line for lines in groups.values() for line in lines]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[\w.]+(; python_version < '3\.\d+')?", line) for line in pins)
    names = [line.partition("==")[0] for line in pins]
    assert len(names) == len(set(names))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    wanted = [*declared["dependencies"], *(line for lines in extras.values() for line in lines)]
    assert {re.split(r"[\[<>=~! ]", line)[0].replace("_", "-") for line in wanted} <= set(names)
    only = {line.partition("==")[0]: line.partition("; ")[2] for line in pins if ";" in line}
    assert only == markers([line for line in wanted if "python_version" in line]), "and for which Pythons it is"


def test_oldest_packages_have_the_sqlite_that_a_node_needs() -> None:
    """With another bound pip leaves an older APSW in place, and no node starts."""
    versions = oldest()
    assert len(versions) > 10
    assert versions["apsw"] == ".".join(map(str, (*SQLITE_VERSION_MIN, 0)))


def test_bytecode_is_cached_despite_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By nodes and by tests, also where the environment forbids it: a start costs half as much then."""
    (tmp_path / "compiled.py").write_text("")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for program, environment in (
        ("import compiled", clean_environment((tmp_path,))),
        ("import tests.conftest, compiled", clean_environment((ROOT, tmp_path)) | {"PYTHONDONTWRITEBYTECODE": "1"}),
    ):
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
        assert [one.name.split(".")[0] for one in (tmp_path / "__pycache__").iterdir()] == ["compiled"]
        shutil.rmtree(tmp_path / "__pycache__")


def test_oldest_python_is_the_same_in_all_tool_settings() -> None:
    """Style and types are judged as it sees them, whichever Python runs: a stub may say more to a newer one."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, tool = declared["project"], declared["tool"]
    oldest = project["requires-python"].removeprefix(">=")
    assert tool["mypy"]["python_version"] == oldest
    assert tool["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    named = [line.rpartition(" :: ")[2] for line in project["classifiers"] if " :: Python :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(int(oldest.partition(".")[2]), 15)]
    launch = (ROOT / "tools" / "launch.sh").read_text()
    assert f"sys.version_info < ({oldest.replace('.', ', ')})" in launch
    assert all(f"python{version}" in launch for version in named)


def test_every_scenario_imports_only_installed_packages() -> None:
    """``tools/bench NAME`` starts on a fresh machine."""
    names = list(scenarios())
    groups = wanted_groups("bench", [names[0], "--help"])
    assert names
    there = {line.partition("==")[0] for group in groups for line in read_lock()[group]}
    absent = {line.partition("==")[0] for lines in read_lock().values() for line in lines} - there
    command = [sys.executable, "-P", "-c", IMPORT_WITHOUT, " ".join(sorted(absent)), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_demo_data_is_sound() -> None:
    """The database that comes with the demo holds together, is small, and is what its page says."""
    assert DATABASE.stat().st_size < 1_000_000
    page = (DATABASE.parent / "README.md").read_text()
    with closing(sqlite3.connect(DATABASE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        for table in ("country", "zone", "zone_country", "clock_change"):
            count = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            assert f"| `{table}` | {count} |" in page
        berlin = "SELECT at, offset_before, offset_after FROM clock_change WHERE zone = 'Europe/Berlin' LIMIT 1"
        assert db.execute(berlin).fetchone() == ("2020-03-29T01:00:00Z", 3600, 7200)


def test_loading_puts_parents_first_and_rows_in_batches(tmp_path: Path) -> None:
    """A child table comes after the table that it refers to; every row is in one batch; generated columns are not."""
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as db:
        db.executescript(
            "CREATE TABLE child(id INTEGER PRIMARY KEY, up REFERENCES Parent(id), twice AS (up * 2));"
            "CREATE TABLE parent(id INTEGER PRIMARY KEY, again REFERENCES child(id));"
            "CREATE INDEX child_up ON child(up);"
        )
        db.executemany("INSERT INTO child(id, up) VALUES (?, ?)", ((i, None) for i in range(3 * BATCH_ROWS + 100)))
        plan = read_plan(db, tmp_path)
        assert [name for name, _ in plan.tables] == ["parent", "child"]
        assert [name for _, name, _ in plan.rest] == ["child_up"]
        with closing(sqlite3.connect(":memory:")) as copy:
            for _, sql in plan.tables:
                copy.execute(sql)
            done = []
            for statements in batches(db, "child"):
                done.append(len(statements))
                for sql, params in statements:
                    assert isinstance(params, tuple)
                    copy.execute(sql, params)
            assert done == [BATCH_ROWS, BATCH_ROWS, BATCH_ROWS, 100]
            assert copy.execute("SELECT * FROM child").fetchall() == db.execute("SELECT * FROM child").fetchall()


def test_unloadable_source_is_named(tmp_path: Path) -> None:
    """A file that is not a database, and a virtual table, are refused before anything is loaded."""
    text = tmp_path / "x.txt"
    text.write_text("no database, but long enough to look at" * 50)
    with closing(open_source(text)) as db, pytest.raises(UsageError, match=r"x\.txt cannot be read"):
        read_plan(db, text)
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE words USING fts4(word)")
        with pytest.raises(UsageError, match="virtual table 'words'"):
            read_plan(db, text)


def test_directory_with_other_files_is_not_deleted(tmp_path: Path) -> None:
    """The demo removes what an earlier demo left, and nothing else."""
    cluster = LocalCluster(tmp_path)
    cluster.write_files()
    cluster.nodes[0].database.write_text("old")
    cluster.write_files()
    assert not cluster.nodes[0].database.exists()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DemoError, match=r"thesis\.txt"):
        cluster.write_files()
    assert (tmp_path / "A.toml").exists()


@pytest.fixture
def books() -> Iterator[tuple[sqlite3.Connection, Tally]]:
    """Return a file as a node would leave it after twenty transfers, and the answers to the clients."""
    db, tally, luck = sqlite3.connect(":memory:"), Tally(), random.Random(5)
    tables = (
        "CREATE TABLE bedrockish_journal(command TEXT, repeat INTEGER)",
        "CREATE TABLE bedrockish_joined(command)",
    )
    for sql in (*SCHEMA, *tables):
        db.execute(sql)
    db.executemany(OPEN, ((i, "Alice", OPENING_BALANCE) for i in range(1, ACCOUNTS + 1)))
    for number in range(20):
        transfer = draw(f"t{number}", luck)
        perform(db, transfer)
        tally.promised[transfer.id] = transfer
    yield db, tally
    db.close()


def perform(db: sqlite3.Connection, transfer: Transfer) -> None:
    db.execute(TAKE, (transfer.amount, transfer.payer))
    db.execute(GIVE, (transfer.amount, transfer.payee))
    db.execute(NOTE, (transfer.id, transfer.payer, transfer.payee, transfer.amount))
    alone = transfer.payer % 2  # or it shares the transaction of another one
    db.execute(
        f"INSERT INTO {'bedrockish_journal VALUES (?, 0)' if alone else 'bedrockish_joined VALUES (?)'}", (transfer.id,)
    )


def broken(checks: list[Check]) -> set[str]:
    return {check.promise for check in checks if not check.kept}


def test_demo_check_passes_for_a_sound_ledger(books: tuple[sqlite3.Connection, Tally]) -> None:
    """The check passes for a sound result; a transfer without an answer may or may not have happened."""
    db, tally = books
    assert broken(check_file("A", db, tally)) == set()
    for number in (20, 21):
        tally.unknown[f"t{number}"] = draw(f"t{number}", random.Random(number))
    perform(db, tally.unknown["t20"])
    assert broken(check_file("A", db, tally)) == set()


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ("DELETE FROM demo_transfer WHERE id = 't3'", "every promised transfer is there"),
        ("UPDATE demo_account SET balance = balance + 1 WHERE id = 7", "no money was made or lost"),
        ("UPDATE demo_account SET balance = balance + 1 WHERE id = 7", "the balances follow from the ledger"),
        ("INSERT INTO demo_transfer VALUES ('t99', 1, 2, 3)", "no refused or unasked transfer is there"),
        ("UPDATE demo_transfer SET amount = amount + 1 WHERE id = 't3'", "no refused or unasked transfer is there"),
        ("INSERT INTO bedrockish_journal VALUES ('t3', 0)", "the journal has each promise once"),
        ("INSERT INTO bedrockish_joined VALUES ('t3')", "the journal has each promise once"),
        ("DELETE FROM bedrockish_journal", "the journal has each promise once"),
        ("DELETE FROM bedrockish_joined", "the journal has each promise once"),
    ],
)
def test_demo_check_detects_each_false_result(books: tuple[sqlite3.Connection, Tally], lie: str, found: str) -> None:
    """A lost, doubled, altered or invented transfer, and money from nowhere, are all found."""
    db, tally = books
    db.execute(lie)
    assert found in broken(check_file("A", db, tally))


def test_quantiles_are_interpolated() -> None:
    """A quantile is the value that this share of all values does not exceed."""
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.99) == 4.0
    assert quantile([], 0.5) != quantile([], 0.5)


def test_every_measurement_is_a_scenario_of_one_program() -> None:
    """``tools/bench NAME`` finds each scenario by its file, says what it measures, and passes its options on."""
    found = scenarios()
    assert {"engine", "growth", "local", "peers"} == set(found)
    assert all(len(about) > 20 for about in found.values()), found
    for arguments, expected in ((["list"], "engine: "), (["local", "--help"], "--learner")):
        ran = subprocess.run(
            [sys.executable, "-m", "tools.bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        assert expected in ran.stdout


@pytest.mark.parametrize("ignored", [False, True])
def test_terminated_bench_stops_its_nodes(tmp_path: Path, ignored: bool) -> None:
    """The bench removes its directory, too, and does both as a job of the background, where Ctrl-C is ignored."""
    given = [sys.executable, "-m", "tools.bench", "--seconds", "0.5", "--work", "insert", "--nodes", "1"]
    bench = subprocess.Popen(
        given,
        env={**clean_environment(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )
    try:
        assert bench.stdout is not None
        until = time.monotonic() + 60
        while not running(tmp_path) and time.monotonic() < until:
            time.sleep(0.05)
        assert running(tmp_path)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(60) == 130
        assert not running(tmp_path)
        assert not list(tmp_path.iterdir())
        assert "Traceback" not in bench.stdout.read()
    finally:
        bench.kill()
        bench.communicate()


def running(directory: Path) -> list[int]:
    """Return the processes whose commands name a directory."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(directory).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


def test_clients_of_the_benchmark_write_rows_of_their_own() -> None:
    """Every client inserts other ids and updates other rows; a transfer changes two rows by opposite amounts."""
    clients = [Draw("insert", number, 64) for number in range(64)]
    ids = [each()[0][1][0] for each in clients for _ in range(50)]
    assert len(set(ids)) == len(ids)
    rows = [{Draw("update", number, 16)()[0][1][1] for _ in range(50)} for number in range(16)]
    assert sum(map(len, rows)) == len(set[int]().union(*rows))
    one, other = Draw("transfer", 0, 1)()
    assert one[1][1] != other[1][1]
    assert one[1][0] + other[1][0] == 0


@pytest.mark.parametrize("work", list(WORKS))
def test_bench_measures_plain_sqlite(work: str, tmp_path: Path) -> None:
    """Each kind of work commits on plain SQLite."""
    measured = measure_sqlite(tmp_path / "plain.sqlite", work, 0.05, warm_up_s=0.0)
    assert measured.commits > 0
    assert 0 < measured.p50_ms <= measured.p99_ms


def test_bench_measures_the_engine_and_plain_sqlite(tmp_path: Path) -> None:
    """Every part has a figure, next to SQLite's figure where SQLite does the same."""
    figures = measure(tmp_path, 1, 0.002)
    assert len(figures) == 18
    assert all(figure.micros > 0 for figure in figures if not figure.what.startswith("prepare"))
    assert {figure.what.partition(",")[0] for figure in figures if figure.plain_micros} >= {
        "prepare",
        "capture",
        "apply",
        "commit of a batch",
        "one-row transaction",
    }


def test_bench_names_the_missing_mariadb_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the packages to install, and no process is started."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(DemoError, match=r"needs mariadbd, mariadb-install-db, rsync.*apt-get install mariadb-server"):
        galera.driver()
