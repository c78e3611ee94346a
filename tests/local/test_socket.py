"""The Unix socket of a real node: the programs that may use it, and their users."""

import os
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from sqlalchemy import create_engine, text

from bedrockish import connect, dbapi, open_client
from bedrockish.api.requests import MemberChange
from bedrockish.api.url import Address, Target, parse_url
from bedrockish.client.blocking import Connection, open_socket_client
from bedrockish.client.credentials import ClientCredentials, credentials_of
from bedrockish.client.in_thread import run
from bedrockish.common.password_hash import SALT_BYTES, hash_password
from bedrockish.embedded import Node
from bedrockish.errors import AuthenticationError, BedrockishError, ConfigError, ForbiddenError, UnavailableError
from bedrockish.local.page import Published, page_path, socket_path
from bedrockish.node.published import open_socket
from bedrockish_net import handshake
from bedrockish_net.errors import RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits
from bedrockish_net.socket_link import dial
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode, local_cluster


def by_socket(node: LocalNode, user: str | None = None) -> Connection:
    target = Target((Address(socket_path(node.database), 0),))
    return Connection(open_socket_client(target, None, ClientCredentials(user=user, password="")))


def test_client_reads_and_writes_by_the_socket(node: LocalNode, table: str) -> None:
    with by_socket(node) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'one')")
        assert db.execute(f"SELECT a FROM {table}").value() == "one"


def test_url_names_the_socket(node: LocalNode, table: str) -> None:
    """The DB-API, SQLAlchemy and the trio client take the same URL; the node's file is not opened."""
    path = socket_path(node.database)
    url = f"bedrockish://{quote(path, safe='')}/"
    with connect(url) as db, closing(dbapi.connect(url)) as other:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'one')")
        assert other.execute(f"SELECT a FROM {table}").fetchone() == ("one",)
        assert db.file is None
    for known in (url, f"bedrockish://?host={path}"):
        engine = create_engine(known)
        with engine.connect() as link:
            assert link.execute(text(f"SELECT a FROM {table}")).scalar() == "one"
        engine.dispose()

    async def read() -> object:
        async with open_client(url) as client:
            return (await client.execute(f"SELECT a FROM {table}")).value()

    assert trio.run(read) == "one"
    with pytest.raises(UnavailableError, match="no-sock"), connect(f"{url[:-1]}no-sock/?connect_timeout=0.2"):
        pass


def test_only_the_owner_may_use_page_and_socket(node: LocalNode) -> None:
    for path in (page_path(node.database), socket_path(node.database)):
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert stat.S_ISSOCK(os.stat(socket_path(node.database)).st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_umask_changes_no_permission(umask: int) -> None:
    """The umask of an operator's shell may be any; files that the owner cannot write would stop the node."""
    script = (
        f"import os, sys; os.umask({umask}); import bedrockish\n"
        "with bedrockish.node() as node:\n"
        "    with bedrockish.connect(str(node.path)) as db:\n"
        "        db.execute('CREATE TABLE t(a)'); db.execute('INSERT INTO t VALUES (1)')\n"
        "        print(db.execute('SELECT a FROM t').value())\n"
        "    for suffix in ('-node', '-sock'):\n"
        "        print(oct(os.stat(str(node.path) + suffix).st_mode & 0o777))\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout == "1\n0o600\n0o600\n", told.stderr


def test_local_socket_refuses_links_of_nodes(node: LocalNode) -> None:
    """A peer proves itself by a certificate, or by being at its address."""
    with pytest.raises(RefusedError, match="not for nodes"):
        dial(socket_path(node.database), 0, Hello("A", "bedrockish", "peer"), 5.0, LinkLimits(), None)


def test_page_is_updated_when_each_batch_is_durable(node: LocalNode, table: str) -> None:
    reader = Published(str(node.database))
    with by_socket(node) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        before = reader.facts()
        for number in range(20):
            db.execute(f"INSERT INTO {table} VALUES ({number}, 1)")
            facts = reader.facts()
            assert facts.durable > before.durable, "an answer leaves when its batch is durable, and the page knows it"
            assert facts.durable <= facts.written
            before = facts
        batch = reader.batch(before.durable)
        assert batch is not None
        assert batch.frames > 0


def test_named_user_narrows_rights_of_program(tmp_path: Path) -> None:
    """A program that can open the socket could open the file, too; over the network the node asks for a password."""
    with local_cluster(tmp_path / "node", ("A",)) as cluster:
        node = cluster.nodes[0]
        trio.run(cluster.wait_ready, 0)
        with by_socket(node) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            for name, role in (("root", "admin"), ("ann", "reader")):
                secret = str(hash_password("secret", os.urandom(SALT_BYTES)))
                change = MemberChange("user add", name, role=role, secret=secret)
                run(db._client.change_members, change)
            db.execute("INSERT INTO t VALUES (1)")
        with by_socket(node, "ann") as db:
            assert db.execute("SELECT id FROM t").value() == 1
            with pytest.raises(ForbiddenError, match="ann needs the role writer"):
                db.execute("INSERT INTO t VALUES (2)")
        url = f"{cluster.url().replace('://', '://ann:secret@')}/?local={node.database}"
        for level in ("session", "strict"):
            with connect(f"{url}&read={level}") as db:
                assert db.execute("SELECT id FROM t").value() == 1
                opened = db.begin()
                assert opened.execute("SELECT id FROM t").value() == 1
                with pytest.raises(ForbiddenError, match="ann needs the role writer"):
                    opened.execute("INSERT INTO t VALUES (2)")
                opened.rollback()
        with pytest.raises(ForbiddenError, match="does not know nobody"):
            by_socket(node, "nobody")
        with pytest.raises(AuthenticationError):
            connect(cluster.url())


def test_program_without_a_user_may_do_everything_in_a_cluster_with_users(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "node", ("A",)) as cluster:
        node = cluster.nodes[0]
        trio.run(cluster.wait_ready, 0)
        with connect(node.database) as early, connect(node.database) as db:
            opened = early.begin()
            opened.execute("SELECT 1")
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            secret = str(hash_password("secret", os.urandom(SALT_BYTES)))
            run(db._client.change_members, MemberChange("user add", "root", role="admin", secret=secret))
            opened.rollback()
            for level in ("session", "strict"):
                for one in (early, db):
                    with one.transaction(read=level) as opened:
                        number = opened.execute("SELECT count(*) FROM t").value()
                        opened.execute("INSERT INTO t VALUES (?)", (number,))
                        assert opened.execute("SELECT value FROM bedrockish_meta WHERE key = 'membership'").rows
            db.execute("CREATE TEMP TABLE own(x)")
            with db.transaction() as opened:
                opened.execute("INSERT INTO own SELECT id FROM t")
                opened.execute("DELETE FROM t WHERE id = 3")
            assert db.execute("SELECT sum(x), (SELECT count(*) FROM t) FROM own").one() == (6, 3)
            with early.transaction() as opened:
                opened.execute("INSERT INTO t VALUES (7)")
                opened.execute("CREATE TABLE u(x)")
            assert db.execute("SELECT DISTINCT user_name FROM bedrockish_changes WHERE user_name <> ''").rows == [
                ("(local)",)
            ]


def test_local_socket_needs_no_tls(tmp_path: Path) -> None:
    settings = {"security": {"tls": str(tmp_path / "certs")}}
    cluster = LocalCluster(tmp_path / "node", ("A",), settings)
    assert program("tls", tmp_path / "certs", "A=127.0.0.1").returncode == 0
    with cluster.running():
        until = time.monotonic() + 60
        while not Path(socket_path(cluster.nodes[0].database)).exists() and time.monotonic() < until:
            time.sleep(0.05)
        with by_socket(cluster.nodes[0]) as db:
            assert db.execute("SELECT 1").value() == 1
        with pytest.raises(BedrockishError):
            connect(cluster.url())


def test_database_path_too_long_for_a_socket_address_is_served(tmp_path: Path) -> None:
    """The system's structure for the address of a socket has 108 bytes."""
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    with local_cluster(folder / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        with by_socket(cluster.nodes[0]) as db:
            assert db.execute("SELECT 1").value() == 1

        async def ask() -> object:
            target = Target((Address(socket_path(cluster.nodes[0].database), 0),))
            stream, _ = await handshake.dial(
                *target.addresses[0], Hello("x", "bedrockish", "client"), 5, LinkLimits(), None
            )
            await stream.aclose()
            return True

        assert trio.run(ask)


def test_error_for_a_too_long_socket_name_has_a_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fits = open_socket(str(tmp_path / ("x" * 75)))
    assert fits is not None
    fits.close()
    assert open_socket(str(tmp_path / ("x" * 76))) is None
    assert caplog.messages[0].endswith(
        "the name of a Unix socket has at most 80 bytes; give the database a shorter name"
    )


def test_ended_node_leaves_a_page_marked_as_ended(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        reader = Published(str(node.database))
        reader.check(reader.facts())
        assert node.process is not None
        node.process.terminate()
        node.process.wait()
        with pytest.raises(UnavailableError, match="stopped"):
            reader.check(reader.facts())
        assert not Path(socket_path(node.database)).exists()
        node.start()
        trio.run(cluster.wait_ready, 0)
        reader.check(reader.facts())
        node.kill()
        node.start()  # the socket that the killed process has left is replaced
        trio.run(cluster.wait_ready, 0)
        with by_socket(node) as db:
            assert db.execute("SELECT 1").value() == 1


def test_node_makes_its_removed_page_and_socket_again() -> None:
    """Otherwise a clean-up of the node's directory would shut local programs out until the node's next start."""
    with Node() as one, one.connect() as before:
        before.execute("CREATE TABLE t(a)")
        for path in (page_path(one.path), socket_path(one.path)):
            os.unlink(path)
            until = time.monotonic() + 60
            while not os.path.exists(path):
                assert time.monotonic() < until
                time.sleep(0.02)
        before.execute("INSERT INTO t VALUES (1)")  # the link to the removed socket still works
        with one.connect() as after:
            after.execute("INSERT INTO t VALUES (2)")
            with after.transaction() as transaction:
                transaction.execute("INSERT INTO t VALUES (3)")
            assert after.file is not None
            assert after.file.published is not None
            assert not after.file.published.facts().why_not
            assert after.execute("SELECT sum(a) FROM t").value() == 6
        assert before.execute("SELECT sum(a) FROM t").value() == 6
        assert "was removed" in one.log.read_text()


def test_url_with_the_socket_and_a_user_needs_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEDROCKISH_PASSWORD", raising=False)
    assert credentials_of(parse_url("bedrockish://ann@%2Fsrv%2FA.sqlite-sock")).password == ""
    with pytest.raises(ConfigError, match="no password"):
        credentials_of(parse_url("bedrockish://ann@%2Fsrv%2FA.sqlite-sock,b:1"))
