"""The page about pandas, Polars and DuckDB: its code runs on a journal and an export."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bedrockish.cli.main import main
from bedrockish_journal.model.changes import INSERT, Change
from bedrockish_journal.spark.export.manifest import partial
from tests.spark.test_typed import commit, schema
from tests.spark.worlds import World

PAGE = (Path(__file__).parents[2] / "docs" / "dataframes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LIBRARIES = ("duckdb", "polars", "pandas")
CREATE = "CREATE TABLE account(id INTEGER PRIMARY KEY, balance REAL)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home, world = tmp_path_factory.mktemp("home"), World()
    rows = [Change("account", ("id", "balance"), INSERT, key, key, None, (key, 1234.5)) for key in (7, 8)]
    schema(world, CREATE)
    commit(world, *rows, users=("ann",))
    world.write(home / "files")[0].rename(home / "a.db")
    result = CliRunner().invoke(main, ["export-journal", str(home / "a.db"), "--to", str(home / "journals")])
    assert result.exit_code == 0, result.output
    partial(home / "journals" / "changes" / "node=A" / "A-000000000009-000000000009.parquet").write_bytes(b"cut")
    return home


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_of_the_dataframes_page_runs(
    home: Path, number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    block = BLOCKS[number]
    for library in LIBRARIES:
        if library in block:
            pytest.importorskip(library)
    monkeypatch.chdir(home)
    exec(compile(block, f"block {number} of docs/dataframes.md", "exec"), {})
    shown = capfd.readouterr().out
    expected = {0: "2469.0", 1: "ann", 2: "-command"}.get(number, "1234.5")
    assert expected in shown, shown


def test_page_shows_each_library_for_each_source() -> None:
    ways = PAGE.split("\n## ")[1:]
    for way, libraries in zip(ways, (LIBRARIES, LIBRARIES), strict=True):
        assert all(library in way for library in libraries)
