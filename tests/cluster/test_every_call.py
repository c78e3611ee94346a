"""A command or a node ends at a call that changes a file, by a kill or a power cut; its next start loses no commit."""

import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.errors import BedrockishError
from bedrockish_journal.verify.verify import verify
from tests.forked import program
from tools.cluster import LocalCluster
from tools.ends import ENDED, build, cut_power, start

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
POINTS, WAIT_S = 20, 60.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library")) or pytest.skip("no C compiler")


def check(case: str, folder: Path, *arguments: object) -> None:
    done = program(*arguments, cwd=folder)
    assert done.returncode == 0, f"{case}: {done.stderr}"


def ends(
    library: Path, folder: Path, arguments: Sequence[object], work: Callable[..., None] = lambda _: None
) -> Iterator[str]:
    """Leave the files of a program that ended at a call in its folder, and yield a name; ``work`` gets the process."""
    first, image, luck = folder.with_name("first"), folder.with_name("image"), random.Random(7)
    shutil.copytree(folder, first)

    def run(at: int) -> list[str]:
        shutil.rmtree(folder)
        shutil.copytree(first, folder)
        running = start(library, arguments, folder, image, at)
        try:
            work(running)
            output, _ = running.communicate(timeout=WAIT_S)
        finally:
            running.kill()
            running.wait()
        assert running.returncode in ((0, ENDED) if at else (0,)), output
        return (image / "calls").read_text().splitlines()

    calls = run(0)
    for at in sorted(luck.sample(range(1, len(calls) + 1), min(POINTS, len(calls)))):
        last = run(at)[-1]
        is_cut = luck.random() < 0.6
        if is_cut:
            cut_power(folder, image)
        yield f"{'a power cut' if is_cut else 'a kill'} before call {at} of {len(calls)}: {last}"


def test_certificates_can_be_made_after_an_end_at_any_call(library: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "run").mkdir()
    for case in ends(library, folder, ["tls", "ca", "B=host2"]):
        made = folder / "ca"
        if not ((made / "B.pem").exists() and (made / "B-key.pem").exists()):
            check(case, folder, "tls", "ca", "B=host2")
        check(case, folder, "tls", "ca", "C=host3")
        check(case, folder, "tls", "ca", "--revoke", "C")
        assert [path.read_text()[-2:] for path in made.glob("*.pem")] == ["-\n"] * 6, case


def test_backup_is_restored_and_continued_after_an_end_at_any_call(library: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "run").mkdir()
    with bedrockish.node() as node, node.connect() as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO t VALUES (1), (2)")
        follow = ["backup", "follow", node.url, "kept", "--every", "0s", "--keep", "0s", "--once"]
        check("at first", folder, *follow)
        for case in ends(library, folder, follow):
            for new in (tmp_path / "new.db", tmp_path / "newer.db"):
                check(case, folder, "restore", "--from", "kept", "--to", new)
                with closing(sqlite3.connect(new)) as file:
                    assert file.execute("SELECT count(*) FROM t").fetchone() == (2,), case
                new.unlink()
                check(case, folder, *follow)


def test_node_keeps_its_commits_after_an_end_at_any_call(library: Path, tmp_path: Path) -> None:
    cluster, acknowledged = LocalCluster(tmp_path / "run", ["A"]), set[int]()
    cluster.write_files()
    (node,) = cluster.nodes

    def commit(running: "subprocess.Popen[str]") -> None:
        acknowledged.clear()
        with suppress(BedrockishError), bedrockish.connect(cluster.url(options="/?connect_timeout=3")) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)", timeout=3)
            for number in range(4):
                db.execute("INSERT INTO t VALUES (?, randomblob(9000))", [number], timeout=3)
                acknowledged.add(number)
        running.terminate()

    for case in ends(library, node.directory, ["serve", "--config", "A.toml"], commit):
        node.start()
        try:
            trio.run(cluster.wait_ready, 0)
            with bedrockish.connect(cluster.url()) as db:
                db.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, a)")
                assert acknowledged <= {number for (number,) in db.execute("SELECT id FROM t")}, case
        finally:
            cluster.stop()
        with closing(sqlite3.connect(node.database)) as file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",), case
        assert not verify([node.database]).findings, case
