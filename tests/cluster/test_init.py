"""``bedrockish init``: three folders that are brought to three machines, and a cluster that works."""

import contextlib
import json
import os
import shlex
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bedrockish import connect
from bedrockish.cli.init import init
from bedrockish.config.config import build
from tests.forked import program
from tools.cluster import adjacent_ports, clean_environment, free_ports

STRANGERS = ("host1", "B=10.1.0.2:7400", "C=db.example.org,10.1.0.3")


@contextlib.contextmanager
def running(home: Path, names: str = "ABC") -> Iterator[None]:
    """Run the nodes of a cluster, each in its folder."""
    command = [sys.executable, "-m", "bedrockish.cli.main", "serve", "--log-level", "warning", "--config"]
    started = []
    try:
        for name in names:
            with (home / f"{name}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [*command, f"{name}.toml"], cwd=home / name, env=clean_environment(), stdout=log, stderr=log
                    )
                )
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.parametrize("tls", [True, False])
def test_folders_made_by_init_run_as_a_cluster(tmp_path: Path, tls: bool) -> None:
    """The last line is a command that shows the status; with certificates, HTTP needs the token."""
    home = tmp_path / "it's 1% new & #1, größer?" / "prod"
    hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
    done = program("init", str(home), *hosts, "--http", str(adjacent_ports(3)[0]), *["--tls"] * tls)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    (url,) = shlex.split(last.removeprefix("then: bedrockish status "))
    with running(home):
        with connect(f"{url}{'&' if tls else '/?'}connect_timeout=30") as db:
            db.execute("CREATE TABLE t(x)")
            for _ in range(20):
                db.execute("INSERT INTO t VALUES (1)")
        until = time.monotonic() + 60
        while (shown := program("status", url)).returncode and time.monotonic() < until:
            time.sleep(0.2)
        logs = [f"{name}: {(home / f'{name}.log').read_text()}" for name in "ABC"]
        assert shown.returncode == 0, "\n".join([shown.stdout, shown.stderr, *logs])
        text = (home / "A" / "A.toml").read_text()
        http = next(line.split('"')[1] for line in text.splitlines() if line.startswith("http ="))
        asked = urllib.request.Request(f"http{'s' * tls}://127.0.0.1:{http.rpartition(':')[2]}/status")
        trusted = ssl.create_default_context(cafile=str(home / "client" / "ca.pem")) if tls else None
        if tls:
            with pytest.raises(urllib.request.HTTPError, match="401"):
                urllib.request.urlopen(asked, context=trusted, timeout=30)
            token = next(line.split('"')[1] for line in text.splitlines() if line.startswith("http_token"))
            asked.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(asked, context=trusted, timeout=30) as answer:
            assert json.loads(answer.read())["node"] == "A"


def test_init_writes_valid_configurations_for_three_machines(tmp_path: Path) -> None:
    """Each configuration is one that its node takes; keys are their owner's, and the authority's is at no node."""
    home = tmp_path / "prod"
    done = program("init", str(home), *STRANGERS, "--cluster", "shop", "--client", "web", "--days", "30")
    assert done.returncode == 0, done.stderr
    assert "bedrockish://host1:7373,10.1.0.2:7400,db.example.org:7373/?ca=" in done.stdout
    for name in "ABC":
        folder = home / name
        built = build(text=(folder / f"{name}.toml").read_text(), file=f"{name}.toml", environment={}, flags={})
        assert (built.node, built.cluster, built.security.tls) == (name, "shop", "certs")
        assert {one: str(at) for one, at in built.peers.items()} == {
            "A": "host1:7373",
            "B": "10.1.0.2:7400",
            "C": "db.example.org:7373",
        }
        assert sorted(file.name for file in (folder / "certs").iterdir()) == [
            f"{name}-key.pem",
            f"{name}.pem",
            "ca.pem",
        ]
    assert sorted(file.name for file in (home / "client").iterdir()) == ["ca.pem", "web-key.pem", "web.pem"]
    assert sorted(file.name for file in (home / "authority").iterdir()) == ["ca-key.pem", "ca.pem", "issued.txt"]
    keys = [*home.rglob("*-key.pem")]
    assert len(keys) == 5
    assert not any(key.stat().st_mode & 0o077 for key in keys)
    certificate = home / "C" / "certs" / "C.pem"
    told = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", certificate], capture_output=True, check=True
    )
    for alternative in (b"DNS:C", b"DNS:db.example.org", b"IP Address:10.1.0.3", b"DNS:localhost"):
        assert alternative in told.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("host1", "127.0.0.1"), "the others cannot reach B at a loopback address"),
        (("A=host1", "a=host2"), "two nodes have the name a"),
        (("host1", "host1"), "two nodes have the address host1:7373"),
        (("0.0.0.0",), "where a node listens"),
        (("9=host1",), "'9' is not a node's name"),
        (("A=",), "'' is not an address"),
        (("host1:port",), "'port' in 'host1:port' is not a port"),
        (("Client=host1",), "would have the folder of the client"),
        (("host1", "--client", "A"), "is the name of a node, too"),
        (("host1", "--client", "../a"), "cannot be the name of a file"),
        (("host1:8080", "--http", "8080"), "is taken; use another"),
        (("host1", "--http", "65535", "host1:1"), "65536 would be the port"),
        (("host1", "--cluster", 'a"b'), "without quotes"),
        (("host1", "--days", "0"), "0 is not in the range"),
    ],
)
def test_init_with_invalid_arguments_creates_no_folder(tmp_path: Path, given: tuple[str, ...], said: str) -> None:
    done = program("init", str(tmp_path / "prod"), *given)
    assert done.returncode == 2 or (done.returncode and "file" in said)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_init_gives_nodes_of_one_machine_different_http_ports(tmp_path: Path) -> None:
    done = program("init", str(tmp_path / "prod"), "localhost:7401", "127.0.0.1:7402", "[::1]:7403", "--http", "8080")
    assert done.returncode == 0, done.stderr
    made = [build(text=(tmp_path / "prod" / name / f"{name}.toml").read_text()) for name in "ABC"]
    assert [one.http.port for one in made if one.http] == [8080, 8081, 8082]


def test_init_overwrites_no_file(tmp_path: Path) -> None:
    """Otherwise keys in use would be lost."""
    home = tmp_path / "prod"
    assert program("init", str(home), "host1").returncode == 0
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    done = program("init", str(home), "host1")
    assert done.returncode
    assert "is not empty" in done.stderr
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert "Permission denied" in program("init", str(tmp_path / "other"), "host1").stderr
        tmp_path.chmod(0o700)


def test_a_database_with_tables_is_not_one_of_three_founders(tmp_path: Path) -> None:
    """The other two founders would begin without the rows, be a majority, and treat the rows as damage."""
    home = tmp_path / "prod"
    ports = free_ports(3)
    assert program("init", str(home), *(f"127.0.0.1:{port}" for port in ports)).returncode == 0
    restored, config = home / "A" / "A.db", home / "A" / "A.toml"
    with contextlib.closing(sqlite3.connect(restored)) as db, db:
        db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO account VALUES (1)")
    done = program("serve", "--config", "A.toml", cwd=restored.parent)
    assert done.returncode == 2, done.stderr
    assert "A.db has tables already, and B and C would begin without them; take the others out" in done.stderr
    config.write_text("".join(line for line in config.read_text().splitlines(True) if line[:3] not in ("B =", "C =")))
    with running(home, "A"), connect(f"bedrockish://127.0.0.1:{ports[0]}/?connect_timeout=30") as client:
        assert list(client.execute("SELECT id FROM account")) == [(1,)]
        # B's configuration has three founders, and with C it would be a majority of empty files.
        done = program("serve", "--config", "B.toml", cwd=home / "B")
        assert (done.returncode, "B is not a member of the cluster at" in done.stderr) == (2, True), done.stderr


def test_even_number_of_nodes_is_reported(tmp_path: Path) -> None:
    done = program("init", str(tmp_path / "four"), *"WXYZ")
    assert done.returncode == 0
    assert "4 nodes survive the loss of 1, as 3 do" in done.stderr


def test_new_cluster_is_durable_when_init_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the command would otherwise leave empty files, under their final names."""
    synced = dict[int, int]()  # inode -> when it was last synced
    real = os.fsync

    def fsync(file: int) -> None:
        synced[os.fstat(file).st_ino] = time.monotonic_ns()
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "deep" / "down" / "try"
    assert CliRunner().invoke(init, [str(folder), "127.0.0.1:7401", "127.0.0.1:7402", "--tls"]).exit_code == 0
    for path in [folder, *folder.rglob("*"), folder.parent, folder.parent.parent, tmp_path]:
        found = path.stat()
        assert synced.get(found.st_ino, 0) > 0, f"{path} was synced"
        if path.is_file():
            assert found.st_size, f"{path} has its content"
