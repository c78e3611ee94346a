"""A continuous backup in an object store, over S3 as a server speaks it: killed, started again, fetched and
restored.
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
import trio

from bedrockish import open_client
from bedrockish.transfer.continuous import numbered
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.restore import SNAPSHOTS
from tests.cluster.story import PATIENT, all_safe, command, ready
from tools.cluster import LocalCluster, clean_environment, free_ports

pytestmark = pytest.mark.cluster
pytest.importorskip("obstore")
pytest.importorskip("moto")
SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A prefix in a bucket of a server of our own."""
    (port,) = free_ports(1)
    place = f"http://127.0.0.1:{port}"
    with (tmp_path / "s3.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 40
        made = urllib.request.Request(f"{place}/backups", method="PUT", headers={"Authorization": SIGNED})
        while True:
            try:
                urllib.request.urlopen(made, timeout=10).close()
                break
            except urllib.error.URLError:
                assert time.monotonic() < until, (tmp_path / "s3.log").read_text()
                time.sleep(0.1)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": place,
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield "s3://backups/shop"
    finally:
        server.kill()
        server.wait()


@contextmanager
def following(*arguments: object, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Follow in another process, which gets a SIGKILL at the end."""
    program = [sys.executable, "-m", "bedrockish.cli.main", "backup", "follow", *map(str, arguments)]
    with log.open("ab") as file:
        running = subprocess.Popen(program, stdout=file, stderr=file, env=clean_environment())
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def accounts(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as db:
        return int(db.execute("SELECT count(*) FROM account").get)


async def test_a_backup_in_s3(cluster: LocalCluster, tmp_path: Path, s3: str) -> None:
    """Killed in the middle of sending, again and again; then the machine with the directory burns."""
    await ready(cluster)
    folder, key, log = tmp_path / "kept", tmp_path / "key", tmp_path / "follow.log"
    command("backup", "key", key)
    options = ("--to", s3, "--key", key)
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, data BLOB)")
        for number in range(1, 13):
            await client.execute("INSERT INTO account VALUES (?, randomblob(700000))", [number])
            if number % 3 == 0:
                with following(cluster.url(), folder, *options, "--push-every", "0s", "--every", "2s", log=log):
                    await trio.sleep(1.0 + 0.37 * (number / 3))  # a kill falls somewhere into what it sends
        await all_safe(cluster)
        command("backup", "follow", cluster.url(), folder, "--once", *options)
        moment = int((await client.execute("SELECT max(clock) FROM bedrockish_journal", read="strict")).value())
        await client.execute("DELETE FROM account WHERE id > 1")
        await all_safe(cluster)
        command("backup", "follow", cluster.url(), folder, "--once", *options)
    told = command("backup", "follow", cluster.url(), tmp_path / "other", "--once", *options, status=2)
    assert "backup fetch" in told
    lost = folder.rename(tmp_path / "lost")
    assert "a key that was not given" in command("backup", "fetch", s3, folder, status=2)
    assert "complete up to clock" in command("backup", "fetch", s3, folder, "--key", key)
    drill = ("backup", "verify", s3, "--younger-than", "1h", "--proven")
    assert f"{s3} can be restored" in command(*drill, "--key", key)
    assert "a key that was not given" in command(*drill, status=2)
    command("restore", "--from", folder, "--to", tmp_path / "then.db", "--at", moment)
    command("restore", "--from", folder, "--to", tmp_path / "now.db")
    command("restore", "--from", lost, "--to", tmp_path / "same.db")
    assert (accounts(tmp_path / "then.db"), accounts(tmp_path / "now.db")) == (12, 1)
    assert digest(tmp_path / "now.db") == digest(tmp_path / "same.db")
    # Continue with the fetched directory as with the lost one.
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("INSERT INTO account VALUES (99, NULL)")
        await all_safe(cluster)
    said = command("backup", "follow", cluster.url(), folder, "--once", *options)
    assert "manifest" in said
    assert len(numbered(folder, SNAPSHOTS)) == len(numbered(lost, SNAPSHOTS))
    os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    assert "error:" in command("backup", "fetch", s3, tmp_path / "third", "--key", key, status=3)
