"""Exports: the Parquet equals the journal, after any interruption; no Java is needed here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

import bedrockish_journal.spark.export.export as exporting
from bedrockish.cli.main import main
from bedrockish_journal.model.errors import ChainBrokenError, JournalError, JournalPrunedError
from bedrockish_journal.spark.export.export import ExportProgress, export
from bedrockish_journal.spark.export.manifest import ExportError, files_of, locked, read_manifest, write_manifest
from bedrockish_journal.spark.source.columns import ARROW
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.tables import TABLES
from tests.spark.test_reader import read
from tests.spark.test_stream import prune
from tests.spark.worlds import World, honest, touching
from tools.cluster import ROOT, clean_environment


def run(path: Path, to: Path, step: int = 20_000) -> list[ExportProgress]:
    told: list[ExportProgress] = []
    with open_feed(str(path)) as feed:
        end = export(feed, str(to), told.append, step)
    assert end == (told[-1] if told else end)
    return told


def exported(to: Path, table: str, files: list[str] | None = None) -> list[dict[str, Any]]:
    """Read a table as any reader of Parquet would: the whole directory, or the files that count."""
    columns = TABLES[table].columns
    if not (to / table).exists():
        return []
    schema = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
    found = ds.dataset(files or str(to / table), format="parquet", partitioning=_hive(), schema=schema)
    return sorted((row for row in found.to_table().to_pylist()), key=repr)


def _hive() -> ds.Partitioning:
    return ds.partitioning(pa.schema([("node", pa.string())]), flavor="hive")


def held(paths: list[Path], table: str) -> list[dict[str, Any]]:
    return sorted((row for path in paths for row in read(path, table=table)), key=repr)


@pytest.fixture(scope="module")
def world() -> World:
    return honest(90)


@pytest.fixture(scope="module")
def files(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return world.write(tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("step", [7, 20_000])
def test_export_equals_the_journals(files: list[Path], tmp_path: Path, step: int) -> None:
    for path in files:
        run(path, tmp_path / "out", step)
    for table in TABLES:
        assert exported(tmp_path / "out", table) == held(files, table), table


def test_second_export_adds_only_new_entries(tmp_path: Path) -> None:
    world = honest(60)
    path = world.write(tmp_path)[0]
    out = tmp_path / "out"
    first = run(path, out)[-1]
    assert (first.entries, first.vector) == (len(world.drafts), world.applied("A"))
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")}
    assert run(path, out) == []
    for _ in range(3):
        assert world.commit("A", touching("later"))
    path.unlink()
    again = world.write(tmp_path / "new")[0]
    assert [(told.entries, told.expected) for told in run(again, out)] == [(3, 3)]
    assert {file: time for file, time in times.items() if file.stat().st_mtime_ns != time} == {}
    assert exported(out, "changes") == held([again], "changes")


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_next_export_repairs_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    """The run dies at its n-th file, fsync or rename, for every n (or each ninth); no reader ever sees a row twice."""
    files = honest(16).write(tmp_path)
    real = {name: getattr(exporting, name) for name in ("sync_folder", "write_manifest", "file_of")}
    expected = held(files[:1], "commits")
    for deadly in range(1, 400, stride):
        out, calls = tmp_path / str(deadly), 0

        def dying(name: str) -> Any:
            def call(*given: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == deadly:  # noqa: B023  called in this round only
                    raise KeyboardInterrupt
                return real[name](*given)

            return call

        for name in real:
            monkeypatch.setattr(exporting, name, dying(name))
        try:
            run(files[0], out, step=9)
        except KeyboardInterrupt:
            places = (
                [(row["leader"], row["tick"]) for row in exported(out, "commits")] if (out / "commits").exists() else []
            )
            assert len(places) == len(set(places))
        else:
            break
        for name, function in real.items():
            monkeypatch.setattr(exporting, name, function)
        run(files[0], out, step=9)
        assert exported(out, "commits") == expected
        assert list(out.rglob("*.partial")) == []
    else:
        raise AssertionError("it never came through")
    assert deadly > 25


def test_files_beyond_the_manifest_are_not_read(files: list[Path], tmp_path: Path) -> None:
    run(files[0], tmp_path)
    manifest = read_manifest(str(tmp_path))
    assert all(files_of(str(tmp_path), table) for table in TABLES if table != "pruned")
    manifest.vectors["A"]["B"] -= 1
    write_manifest(str(tmp_path), manifest)
    assert not [name for name in files_of(str(tmp_path), "commits") if "/B-" in name]
    assert files_of(str(tmp_path / "none"), "commits") == []


def test_a_journal_that_does_not_continue_the_export_is_refused(tmp_path: Path) -> None:
    world = honest(60)
    run(world.write(tmp_path / "old")[0], tmp_path / "out")
    world.change(("A", world.applied("A")["A"]), lambda draft: draft.__class__(**{**_fields(draft), "changes": b"x"}))
    for _ in range(2):
        assert world.commit("A", touching("later"))
    with pytest.raises(ChainBrokenError, match="timeline A is broken"):
        run(world.write(tmp_path / "new")[0], tmp_path / "out")


def _fields(draft: object) -> dict[str, Any]:
    return {name: getattr(draft, name) for name in draft.__dataclass_fields__}  # type: ignore[attr-defined]


def test_export_with_a_gap_in_a_timeline_fails(tmp_path: Path) -> None:
    paths = honest(60).write(tmp_path)
    prune(paths[0], "B", 3)
    with pytest.raises(JournalPrunedError, match="no longer holds B1"):
        run(paths[0], tmp_path / "out")
    db = apsw.Connection(str(paths[1]))
    db.execute("DELETE FROM bedrockish_journal WHERE leader = 'B' AND tick = 5")
    db.close()
    with pytest.raises(JournalError, match="entries from B1 to B"):
        run(paths[1], tmp_path / "out")


def test_foreign_directories_and_manifests_are_refused(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ExportError, match=r"has letter\.txt in it"):
        run(files[0], tmp_path)
    out = tmp_path / "out"
    with locked(str(out)), pytest.raises(ExportError, match="another export is writing"):
        run(files[0], out)
    (out / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(ExportError, match="is of format 9"):
        run(files[0], out)
    (out / "manifest.json").write_text("{")
    with pytest.raises(ExportError, match="cannot be read"):
        run(files[0], out)


def test_export_command_handles_several_files_and_prints_its_progress(
    world: World, files: list[Path], tmp_path: Path
) -> None:
    arguments = ["export-journal", *map(str, files), "--to", str(tmp_path / "out")]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 0, ended.output
    ends = " ".join(f"{leader}{tick}" for leader, tick in world.applied("B").items())
    assert ended.stdout.splitlines()[1] == f"B: {len(world.drafts)} new entries, up to {ends}"
    ended = CliRunner().invoke(main, [*arguments, "--json"])
    assert [told["entries"] for told in json.loads(ended.stdout)] == [0, 0, 0]
    ended = CliRunner().invoke(main, ["export-journal", str(tmp_path / "none.db"), "--to", str(tmp_path / "out")])
    assert ended.exit_code == 1
    assert "no such file" in ended.stderr


def test_export_without_pyarrow_names_the_package(files: list[Path], tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyarrow'] = None\nfrom bedrockish.cli.main import main; main(sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", program, "export-journal", str(files[0]), "--to", str(tmp_path)],
        capture_output=True, text=True, env=clean_environment(), cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == "error: pyarrow is not installed; pip install 'bedrockish[spark]'\n"
