"""Three real nodes with TLS and users: they admit only members and users, and tell other callers the reason."""

import base64
import json
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy
import trio

import bedrockish.dbapi
from bedrockish import connect
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import AuthenticationError, BedrockishError
from bedrockish_journal.model.levels import LEVEL
from bedrockish_net.errors import NetError, RefusedError
from bedrockish_net.events import Hello
from tests.cluster.story import ready, send_signal, status_of, until
from tests.forked import program
from tests.net.links import dial_link
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

USERS = {"ann": str(hash_password("s/e@cret", bytes(16)))}
LOGIN = "ann:s%2Fe%40cret@"


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, made by our own command."""
    path = tmp_path_factory.mktemp("tls") / "certs"
    done = program("tls", str(path), "A=127.0.0.1", "B=127.0.0.1,localhost", "C=127.0.0.1", "--client", "app")
    assert done.returncode == 0, done.stderr
    assert (path / "ca-key.pem").stat().st_mode & 0o077 == 0
    return path


def start(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        node.start()
    trio.run(ready, cluster)


@pytest.fixture(scope="module")
def tls(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with certificates and one user."""
    cluster = LocalCluster(tmp_path_factory.mktemp("tls") / "three", settings={"users": USERS})
    cluster.add_http()
    cluster.write_files()
    for node in cluster.nodes:
        node.config.write_text(node.config.read_text() + f'\n[security]\ntls = "{certs}"\n')
    cluster.login, cluster.options = LOGIN, f"ca={certs / 'ca.pem'}"
    try:
        start(cluster)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with one user, without TLS."""
    cluster = LocalCluster(tmp_path_factory.mktemp("users") / "three", settings={"users": USERS})
    cluster.add_http()
    cluster.write_files()
    cluster.login = LOGIN
    try:
        start(cluster)
        yield cluster
    finally:
        cluster.stop()


def refused(url: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        connect(url)
    assert "s/e@cret" not in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


def test_tls_admits_clients_with_a_password_or_a_certificate(tls: LocalCluster, certs: Path) -> None:
    """Nodes admit clients with a password or a certificate; others get one line that names the missing login."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in tls.nodes)
    ca = f"ca={certs / 'ca.pem'}"
    with connect(tls.url()) as db:
        db.execute("CREATE TABLE t(a)")
        db.execute("INSERT INTO t VALUES (?)", (b"x" * 1_000_000,))
    own = f"cert={certs / 'app.pem'}&key={certs / 'app-key.pem'}"
    with connect(f"bedrockish://{hosts}/?{ca}&{own}") as db:
        assert db.execute("SELECT length(a) FROM t").value() == 1_000_000
        db.execute("INSERT INTO t VALUES ('of a certificate')")
        of = "SELECT user_name FROM bedrockish_changes WHERE table_name = 't' ORDER BY clock"
        assert db.execute(of).rows == [("ann",), ("client:app",)]
    assert refused(f"bedrockish://ann:no@{hosts}/?{ca}") == "wrong user or password"
    assert "requires a user, and a password or a token" in refused(f"bedrockish://{hosts}/?{ca}")
    other = certs.parent / "other"
    assert program("tls", str(other), "--client", "eve").returncode == 0
    assert "certificate verify failed" in refused(f"bedrockish://{LOGIN}{hosts}/?ca={other / 'ca.pem'}")
    name = f"bedrockish://{LOGIN}localhost:{tls.nodes[0].port}/?{ca}&discover=no"
    assert "certificate is not valid for 'localhost'" in refused(name)
    with pytest.raises(BedrockishError, match=r"127\.0\.0\.1"):
        connect(f"bedrockish://{LOGIN}{hosts}/?connect_timeout=0.5")  # without TLS


async def test_client_cannot_connect_as_a_peer(tls: LocalCluster, certs: Path) -> None:
    from bedrockish_net.tls import dial_context

    context = dial_context(*(str(certs / name) for name in ("ca.pem", "app.pem", "app-key.pem")))
    node = tls.nodes[0]
    with pytest.raises(RefusedError, match="showed a certificate of client:app"):
        await dial_link("127.0.0.1", node.port, Hello("B", "bedrockish", to="A"), ssl_context=context)


def test_https_requires_a_password(tls: LocalCluster, certs: Path) -> None:
    context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    login = "Basic " + base64.b64encode(b"ann:s/e@cret").decode()

    def ask(path: str, authorization: str) -> tuple[int, str]:
        url = f"https://127.0.0.1:{tls.nodes[0].http_port}{path}"
        request = urllib.request.Request(url, headers={"Authorization": authorization})
        try:
            with urllib.request.urlopen(request, context=context, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["www-authenticate"] + error.read().decode()

    status, body = ask("/nodes", login)
    assert status == 200
    assert list(json.loads(body)) == ["A", "B", "C"]
    status, body = ask("/status", "Basic " + base64.b64encode(b"ann:no").decode())
    assert status == 401
    assert 'Basic realm="bedrockish"' in body
    assert "wrong user or password" in body
    for nonsense in ("Basic !!!", "Basic ", "Bearer x", "Basic " + base64.b64encode(b"\xff:\xff").decode()):
        assert ask("/status", nonsense)[0] == 401
    assert ask("/livez", "")[0] == 200


def test_joining_a_cluster_with_users_needs_a_login(plain: LocalCluster, tmp_path: Path) -> None:
    config = tmp_path / "D.toml"
    config.write_text(f'node = "D"\ndatabase = "{tmp_path / "D.sqlite"}"\nlisten = "127.0.0.1:7999"\n')
    done = program("join", plain.url().replace(LOGIN, ""), "--config", str(config), "--no-serve")
    assert (done.returncode, done.stderr.count("error:")) == (2, 1)
    assert "requires a user, and a password or a token" in done.stderr
    done = program("join", plain.url(), "--config", str(config), "--no-serve")
    assert done.returncode == 0, done.stderr
    assert program("member", "remove", plain.url(), "D").returncode == 0
    backup = tmp_path / "backup.db"
    assert program("backup", plain.url(), str(backup)).returncode == 0
    assert backup.stat().st_size > 0


def test_replayed_hello_is_refused(tls: LocalCluster) -> None:
    """A replayed HELLO, of a node or of a client, is refused without the key."""

    async def play(role: Literal["peer", "client"], name: str) -> None:
        hello = Hello(
            name, "bedrockish", role, "B", {"store": "x", "batches": 10**12, "cluster_id": "x", "level": LEVEL}
        )
        with pytest.raises(NetError):
            await dial_link("127.0.0.1", tls.nodes[1].port, hello)

    trio.run(play, "peer", "A")
    trio.run(play, "client", "shell")
    status = trio.run(status_of, tls, 1)
    assert all(one["up"] and not one["trouble"] for one in status["nodes"].values())


def test_node_that_listens_beyond_loopback_needs_tls(tmp_path: Path) -> None:
    """The error names the two commands."""
    config = tmp_path / "A.toml"
    text = f'node = "A"\ndatabase = "{tmp_path / "A.sqlite"}"\nlisten = "0.0.0.0:7373"\n'
    config.write_text(text)
    done = program("serve", "--config", str(config))
    assert done.returncode == 2
    assert "run 'bedrockish tls certs A=HOST' once" in done.stderr
    assert "'bedrockish serve --set tls=certs'" in done.stderr
    assert not (tmp_path / "A.sqlite").exists()


def test_certificates_are_read_again_on_sighup(tls: LocalCluster, certs: Path) -> None:
    """A revoked certificate loses its link and gets no other; a node shows its new certificate, and reports its expiry.

    An unreadable file changes nothing.
    """
    assert program("tls", str(certs), "--client", "bob").returncode == 0
    hosts = f"127.0.0.1:{tls.nodes[0].port}"
    bob = (
        f"bedrockish://{hosts}/?ca={certs / 'ca.pem'}&cert={certs / 'bob.pem'}&key={certs / 'bob-key.pem'}&discover=no"
    )

    async def status() -> dict[str, Any]:
        return await status_of(tls, 0)

    def days_left() -> int:
        found = trio.run(status)
        ends = float(found["certificates"][str(certs / "A.pem")])
        return round((ends - float(found["wall_s"])) / 86_400)

    def hang_up(says: str) -> None:
        before = tls.nodes[0].log.read_text().count(says)
        send_signal(tls.nodes[0], signal.SIGHUP)

        async def said() -> bool:
            return tls.nodes[0].log.read_text().count(says) > before

        trio.run(until, says, said)

    with connect(bob) as db:
        assert db.execute("SELECT 1").value() == 1
        assert trio.run(status)["certificates_revoked"] == 0
        done = program("tls", str(certs), "--revoke", "bob")
        assert (done.returncode, done.stdout.strip()) == (0, str(certs / "revoked.txt"))
        hang_up("certificates and revocations were read again")
        with pytest.raises(BedrockishError, match="revoked"):
            db.execute("SELECT 1", timeout=20)
    assert "client:bob with the serial number" in refused(bob)
    assert (trio.run(status)["certificates_revoked"], days_left()) == (1, 1825)
    files = [certs / "A.pem", certs / "A-key.pem"]
    for file in files:
        file.rename(file.with_suffix(".old"))
    assert program("tls", str(certs), "A=127.0.0.1", "--days", "10").returncode == 0
    hang_up("certificates and revocations were read again")
    assert days_left() == 10
    assert [one["code"] for one in trio.run(status)["troubles"]] == ["certificate"]
    context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    for port in (tls.nodes[0].http_port, tls.nodes[0].port):
        with (
            socket.create_connection(("127.0.0.1", port or 0)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as shown,
        ):
            ends = ssl.cert_time_to_seconds(str((shown.getpeercert() or {})["notAfter"]))
            assert ends - time.time() < 11 * 86_400
    (certs / "revoked.txt").write_text("nonsense\n")
    hang_up("the certificates stay as they were")
    assert trio.run(status)["certificates_revoked"] == 1
    (certs / "revoked.txt").unlink()
    assert program("tls", str(certs / "other"), "A=127.0.0.1").returncode == 0
    for file in files:
        (certs / "other" / file.name).replace(file)
    hang_up("A.pem: unable to get local issuer certificate; the certificates stay as they were")
    assert days_left() == 10
    trio.run(ready, tls)
    (certs / "other" / "ca.pem").replace(certs / "ca.pem")
    hang_up("ca.pem has none of its earlier authorities; open links stay, and the next link")


def test_wrong_password_is_reported_in_one_line_by_every_interface(plain: LocalCluster) -> None:
    wrong = plain.url().replace(LOGIN, "ann:no@")
    assert refused(wrong) == "wrong user or password"
    with pytest.raises(bedrockish.dbapi.OperationalError, match=r"^wrong user or password$") as caught:
        bedrockish.dbapi.connect(wrong)
    assert (caught.value.code, caught.value.retry) == ("authentication", False)
    host, port = f"[127.0.0.1:{plain.nodes[0].port}]", plain.nodes[0].port
    engine = sqlalchemy.create_engine(f"bedrockish://ann:no@{host}/")
    with pytest.raises(sqlalchemy.exc.OperationalError, match="wrong user or password"):
        engine.connect()
    assert "ann:no" not in str(engine.url)
    engine = sqlalchemy.create_engine(f"bedrockish://{LOGIN}{host}/")
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    engine.dispose()
    for arguments in (["sql", wrong, "SELECT 1"], ["status", wrong], ["export", wrong, "x.db"]):
        done = program(*arguments)
        assert (done.returncode, done.stderr) == (2, "error: wrong user or password\n"), arguments
    nameless = f"bedrockish://ann@127.0.0.1:{port}/"
    done = program("sql", nameless, "SELECT 1")
    assert done.returncode == 2
    assert done.stderr == "error: the URL names the user 'ann' but no password; set BEDROCKISH_PASSWORD\n"
    done = program("sql", nameless, "SELECT 1", BEDROCKISH_PASSWORD="s/e@cret")
    assert (done.returncode, done.stderr) == (0, "")


def test_password_prints_a_line_with_the_hash() -> None:
    done = program("password", "ann", stdin="hunter2\n")
    assert done.returncode == 0
    assert done.stdout.startswith('ann = "scrypt:14:8:1:')
    assert "hunter2" not in done.stdout + done.stderr
    done = program("password", "an n")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
