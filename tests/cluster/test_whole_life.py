"""The whole life of a cluster: founded with ``init``, grown, upgraded, given users, its secrets exchanged, restored
elsewhere, restarted node by node, with a full and with a lost disk, made smaller; and clients at work all the time.

None sees an error, but those with an open transaction whose node ended: they are told so, and that it did not happen.

``pytest --slow -s tests/cluster/test_whole_life.py`` prints, for each part of it, how long commits took.
"""

import json
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import connect, open_client
from bedrockish.errors import BedrockishError, UnavailableError
from bedrockish_journal.model.levels import LEVEL
from tests.cluster.releases import unpack_last_release
from tests.cluster.story import judge_files, level, ready, rows, send_signal, status_of, until
from tests.cluster.test_waiting import LIMIT_BYTES, limit_files
from tests.forked import program
from tools.cluster import SOURCES, LocalCluster, LocalNode, clean_environment, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PASSWORDS = {"app": "first secret", "root": "of the root", "shop": "second secret"}


class Home(LocalNode):
    """A node in a folder of its own, as ``init`` makes them."""

    @property
    def database(self) -> Path:
        """The SQLite file, which ``init`` has named."""
        return self.directory / f"{self.name}.db"


@dataclass
class Shop:
    """Clients that write orders until they are stopped, with a record of their errors.

    Attributes:
        url: the present URL for new connections; open links do not notice a change.
        web: the token and URL for clients of HTTP.
        done: the acknowledged orders.
        errors: the errors of clients, after all their retries.
        cut: the errors of clients whose open transaction ended with its node.
        gone: the orders of these transactions, which were not committed.
        times: phase -> seconds that each commit took, from the call to its answer.
        phase: the present step of the cluster's life.
    """

    url: str
    web: tuple[str, str] = ("", "")
    trusted: ssl.SSLContext | None = None
    gone: set[str] = field(default_factory=set)
    phase: str = "start"
    stopping: bool = False
    done: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)

    async def customer(self, name: str) -> None:
        """Write one order after the other over links; use a changed URL from the next order on."""
        count = 0
        while not self.stopping:
            async with open_client(url := self.url) as client:
                while url == self.url and not self.stopping:
                    await self._order(f"{name}-{count}", lambda order: client.execute(INSERT, [order]))
                    count += 1

    async def visitor(self, name: str) -> None:
        """Write one order after the other by HTTP, like a program without a client: after a failure, again with the
        same id.
        """
        count = 0
        while not self.stopping:
            await self._order(f"{name}-{count}", self._visit)
            count += 1

    async def cashier(self, name: str) -> None:
        """Run one open transaction of two orders after the other."""
        count = 0
        while not self.stopping:
            async with open_client(url := self.url) as client:
                while url == self.url and not self.stopping:
                    orders = [f"{name}-{count}-{half}" for half in "ab"]
                    count += 1
                    try:
                        async with client.transaction() as transaction:
                            for order in orders:
                                await transaction.execute(INSERT, [order])
                                await trio.sleep(0.02)
                    except BedrockishError as error:
                        is_cut = isinstance(error, UnavailableError) and "did not happen" in error.message
                        (self.cut if is_cut else self.errors).append(f"{self.phase}: {orders[0]}: {error!r}")
                        self.gone.update(orders if is_cut else ())
                        continue
                    self.done.update(orders)

    async def _order(self, order: str, send: Callable[[str], Any]) -> None:
        began = time.perf_counter()
        try:
            await send(order)
        except BedrockishError as error:
            self.errors.append(f"{self.phase}: {order}: {error!r}")
            await trio.sleep(0.5)
            return
        self.done.add(order)
        self.times.setdefault(self.phase, []).append(time.perf_counter() - began)

    async def _visit(self, order: str) -> None:
        body = json.dumps([[INSERT, order]]).encode()
        said = ""
        for _ in range(60):
            url, token = self.web
            asked = urllib.request.Request(
                f"{url}/db/execute?command={order}", body, {"Content-Type": "application/json"}
            )
            asked.add_header("Authorization", f"Bearer {token}")
            try:
                await trio.to_thread.run_sync(self._post, asked)
            except urllib.error.HTTPError as error:
                said = error.read().decode()
                # 401: the token was exchanged while the request was in flight
                if error.code not in (401, 503, 504, 409):
                    break
            except OSError as error:
                said = repr(error)
            else:
                return
            await trio.sleep(0.1)
        raise BedrockishError(f"HTTP: {said}")

    def _post(self, asked: urllib.request.Request) -> None:
        urllib.request.urlopen(asked, timeout=20, context=self.trusted).close()

    async def moves(self, orders: int = 30) -> None:
        """Wait until so many more orders are in."""
        before = len(self.done)

        async def more() -> bool:
            return len(self.done) >= before + orders

        await until("customers get on", more)

    def report(self) -> str:
        """Return a table: part by part how many commits there were, and how long they took, in milliseconds."""
        lines = [f"{'while':42} {'commits':>8} {'p50 ms':>8} {'p99 ms':>8} {'most ms':>8}"]
        for phase, took in self.times.items():
            ordered = sorted(took)
            marks = [1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.99, 1)]
            lines.append(f"{phase:42} {len(ordered):8} " + " ".join(f"{mark:8.0f}" for mark in marks))
        lines += [f"open transactions that ended with their node: {len(self.cut)}", *self.cut[:20]]
        return "\n".join([*lines, f"other errors that a client saw: {len(self.errors)}", *self.errors[:20]])


INSERT = "INSERT INTO orders(name) VALUES (?)"


def login(name: str) -> str:
    """Return what stands before the hosts in a user's URL."""
    return f"{name}:{PASSWORDS[name].replace(' ', '%20')}@"


@dataclass
class Life:
    """A cluster in folders made by ``init``, and the work of its operator."""

    home: Path
    cluster: LocalCluster
    last: Sequence[Path]
    admin: str = ""  # user:password@ of the operator
    certificate: str = "app"  # the operator's certificate
    backup: subprocess.Popen[bytes] | None = None

    def url(self, *, login: str = "", certificate: str = "", hosts: str = "") -> str:
        """Return a URL with all nodes, with the login or the certificate."""
        folder = self.home / "client"
        hosts = hosts or ",".join(f"127.0.0.1:{node.port}" for node in self.cluster.nodes)
        shown = f"&cert={folder / f'{certificate}.pem'}&key={folder / f'{certificate}-key.pem'}" if certificate else ""
        return f"bedrockish://{login}{hosts}/?ca={folder / 'ca.pem'}{shown}&timeout=40"

    @property
    def own(self) -> str:
        """The operator's URL."""
        return self.url(login=self.admin) if self.admin else self.url(certificate=self.certificate)

    async def do(self, *words: str, stdin: str = "") -> str:
        """Run a command of the present release, which must succeed; return its output."""
        done = await trio.to_thread.run_sync(lambda: program(*words, stdin=stdin))
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    async def in_the_end(self, *words: str) -> str:
        """Run the command until the cluster is healthy and it succeeds."""
        said: list[str] = []

        async def well() -> bool:
            done = await trio.to_thread.run_sync(lambda: program(*words))
            said[:] = [done.stdout + done.stderr]
            return done.returncode == 0

        await until(f"{words} ends well", well)
        return said[0]

    async def end(self, node: LocalNode) -> None:
        """End a node in order."""
        assert node.process is not None
        node.process.terminate()
        assert await trio.to_thread.run_sync(node.process.wait) == 0, node.last_words()

    def follow(self) -> None:
        """Start a continuous backup, or go on with it."""
        command = [sys.executable, "-m", "bedrockish.cli.main", "backup", "follow", self.own, str(self.home / "kept")]
        with (self.home / "backup.log").open("ab") as log:
            self.backup = subprocess.Popen(command, env=clean_environment(), stdout=log, stderr=log)

    def unfollow(self) -> None:
        """Kill it."""
        if self.backup is not None:
            self.backup.kill()
            self.backup.wait()

    async def grow(self, name: str, address: str = "") -> None:
        """Let a further machine join as a voter, with the certificate that the authority gives it."""
        await self.do("tls", str(self.home / "authority"), f"{name}=127.0.0.1")
        port = int(address.rpartition(":")[2]) if address else free_ports(1)[0]
        node = Home(name, port, self.home / name, sources=self.last)
        self.bring(node, "ca.pem", f"{name}.pem", f"{name}-key.pem")
        text = f'node = "{name}"\ndatabase = "{name}.db"\nlisten = "127.0.0.1:{node.port}"\n[security]\ntls = "certs"\n'
        node.config.write_text(text.replace("[security]", 'cluster = "shop"\n[security]'))
        url = self.own
        self.cluster.nodes.append(node)
        node.start("join", url, "--voter")

        async def voter() -> bool:
            try:
                return bool((await status_of(self.cluster, 0))["nodes"].get(name, {}).get("role") == "voter")
            except BedrockishError:
                return False

        await until(f"{name} is a voter", voter)

    def bring(self, node: LocalNode, *files: str) -> None:
        """Copy files of the authority to a node's machine, which keeps only the common ones."""
        folder = node.directory / "certs"
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            made = self.home / "authority" / file
            place = folder / file
            place.write_bytes(made.read_bytes())
            place.chmod(0o600)
            if file.startswith(node.name):
                made.unlink()


def founded(home: Path, last: Sequence[Path]) -> Life:
    """Found the cluster as an operator does: ``init`` makes the folders, and each is copied to its machine."""
    ports, pages = free_ports(3), free_ports(3)
    nodes = [f"127.0.0.1:{port}" for port in ports]
    done = program("init", str(home), *nodes, "--tls", "--cluster", "shop", "--http", str(min(ports) - 4))
    assert done.returncode == 0, done.stderr
    # The three ports may belong to other programs of this machine; an operator would choose others, too.
    for name, port in zip("ABC", pages, strict=True):
        file = home / name / f"{name}.toml"
        # The last release serves HTTP with libraries that this one does not need: HTTP begins with the upgrade.
        file.write_text(re.sub(r'(?m)^http = "127\.0\.0\.1:\d+"', f'# http = "127.0.0.1:{port}"', file.read_text()))
    cluster = LocalCluster(home / "nodes")
    cluster.nodes = [Home(name, port, home / name) for name, port in zip("ABC", ports, strict=True)]
    life = Life(home, cluster, last)
    cluster.options = life.url(certificate="app").partition("?")[2]
    for node in cluster.nodes:
        node.sources = last
        node.start()
    return life


@asynccontextmanager
async def customers(shop: Shop) -> AsyncIterator[None]:
    """Run four clients in parallel with the block."""
    async with trio.open_nursery() as nursery:
        for name in ("ann", "bob", "cleo", "dan"):
            nursery.start_soon(shop.customer, name)
        await shop.moves()
        yield
        shop.stopping = True


async def test_cluster_loses_no_order_through_joins_kills_and_upgrades(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "last").mkdir()
    life = founded(tmp_path / "shop", unpack_last_release(tmp_path / "last"))
    shop = Shop(life.own)
    try:
        await ready(life.cluster)
        with connect(life.own) as db:
            db.execute("CREATE TABLE orders(name TEXT PRIMARY KEY)")
        async with customers(shop):
            await grows(life, shop)
            await is_upgraded(life, shop)
            await gets_users(life, shop)
            life.follow()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shop.visitor, "web")
                nursery.start_soon(shop.cashier, "eve")
                nursery.start_soon(shop.cashier, "fay")
                await shop.moves()
                await exchanges_secrets(life, shop)
                await exchanges_the_authority(life, shop)
                await is_restored_elsewhere(life, shop)
                await is_restarted(life, shop)
                await has_no_room(life, shop)
                await loses_a_disk(life, shop)
                await shrinks(life, shop)
                shop.phase = "three are left"
                await shop.moves()
                shop.stopping = True
        await level(life.cluster)
        life.cluster.stop()
        for node in life.cluster.nodes:
            found = [name for (name,) in rows(node, "SELECT name FROM orders")]
            assert shop.done <= set(found)
            assert not shop.gone & set(found), "what did not happen did not happen"
        judge_files(life.cluster)
        with capsys.disabled():
            print(f"\n{shop.report()}")
        assert not shop.errors, shop.errors[:5]
    finally:
        life.unfollow()
        life.cluster.stop()


async def grows(life: Life, shop: Shop) -> None:
    """Let two further machines join, still with the last release."""
    for name in "DE":
        shop.phase = f"{name} joins (last release)"
        await life.grow(name)
        await shop.moves()
    shop.url = life.own


async def is_upgraded(life: Life, shop: Shop) -> None:
    """Upgrade node after node, each when the new release allows it."""
    for node in life.cluster.nodes:
        shop.phase = "nodes are upgraded"
        await life.in_the_end("upgrade", "check", life.own)
        await life.end(node)
        node.sources = SOURCES
        node.config.write_text(node.config.read_text().replace("# http =", "http ="))
        node.start()
        await ready(life.cluster)

    async def raised() -> bool:
        found = [await status_of(life.cluster, index) for index in range(5)]
        return all(one["cluster_level"] == LEVEL for one in found)

    await until("the cluster speaks as the new release does", raised)
    await shop.moves()


async def gets_users(life: Life, shop: Shop) -> None:
    """Add the user of the clients' certificate first, so that the clients are admitted once users are required."""
    shop.phase = "the first users are made"
    for name in ("app", "root"):
        await life.do("user", "add", life.own, name, "--role", "admin", stdin=PASSWORDS[name] + "\n")
    life.admin = login("root")
    await life.do("user", "revoke", life.own, "app", "admin")
    await life.do("user", "grant", life.own, "app", "writer")
    life.cluster.login, life.cluster.options = life.admin, life.own.partition("?")[2]
    shop.web = (await http(life), await token(life, "app"))
    shop.trusted = ssl.create_default_context(cafile=str(life.home / "client" / "ca.pem"))
    await shop.moves()


async def http(life: Life) -> str:
    """Return where the second node serves HTTP."""
    lines = life.cluster.nodes[1].config.read_text().splitlines()
    place = next(line.split('"')[1] for line in lines if line.startswith("http ="))
    return f"https://{place}"


async def token(life: Life, name: str) -> str:
    """Have a token made for a user."""
    return (await life.do("user", "token", life.own, name, "--for", "1h")).strip()


async def exchanges_secrets(life: Life, shop: Shop) -> None:
    """Exchange certificates of nodes and clients, a password, and tokens; end the old ones when no client uses them."""
    shop.phase = "certificates are exchanged"
    # The authority stays, so holders of old and of new certificates trust each other.
    for node in life.cluster.nodes:
        await life.do("tls", str(life.home / "authority"), f"{node.name}=127.0.0.1,localhost")
        old = (node.directory / "certs" / f"{node.name}.pem").read_bytes()
        life.bring(node, f"{node.name}.pem", f"{node.name}-key.pem")
        assert (node.directory / "certs" / f"{node.name}.pem").read_bytes() != old
        send_signal(node, signal.SIGHUP)
        await shop.moves(5)
    shop.phase = "a password and tokens are exchanged"
    # A second user next to the first: both passwords count until all clients have the new one.
    await life.do("user", "add", life.own, "shop", "--role", "writer", stdin=PASSWORDS["shop"] + "\n")
    shop.url = life.url(login=login("shop"))
    shop.web = (shop.web[0], await token(life, "shop"))
    await shop.moves()
    await life.do("user", "remove", life.own, "app")
    with pytest.raises(BedrockishError):
        connect(life.url(login=login("app"))).close()
    # The clients' certificate, now unused, is put on the revocation list.
    await life.do("tls", str(life.home / "authority"), "--revoke", "app")
    for node in life.cluster.nodes:
        life.bring(node, "revoked.txt")
        send_signal(node, signal.SIGHUP)
    await shop.moves()


async def exchanges_the_authority(life: Life, shop: Shop) -> None:
    """First all nodes trust both authorities, then the new one signs, then the old one is removed."""
    shop.phase = "the authority is exchanged"
    old = life.home / "authority"
    both, new = (old / "ca.pem").read_text(), life.home / "authority-2"
    hosts = [f"{node.name}=127.0.0.1,localhost" for node in life.cluster.nodes]
    await life.do("tls", str(new), *hosts)
    only_new = (new / "ca.pem").read_text()
    both += only_new

    async def trust(text: str) -> None:
        for node in life.cluster.nodes:
            (node.directory / "certs" / "ca.pem").write_text(text)
            send_signal(node, signal.SIGHUP)
        (life.home / "client" / "ca.pem").write_text(text)
        shop.trusted = ssl.create_default_context(cadata=text)
        shop.url = f"{life.url(login=login('shop'))}&connect_timeout={20 + len(text) % 7}"  # they connect again
        life.unfollow()
        life.follow()
        await shop.moves()

    await trust(both)
    for node in life.cluster.nodes:
        for file in (f"{node.name}.pem", f"{node.name}-key.pem"):
            (node.directory / "certs" / file).write_bytes((new / file).read_bytes())
        send_signal(node, signal.SIGHUP)
        await shop.moves(5)
    old.rename(life.home / "authority-1")
    new.rename(old)
    await trust(only_new)
    for node in life.cluster.nodes:  # as after a power failure, all links are opened again
        node.kill()
        node.start()
        await ready(life.cluster)


async def is_restored_elsewhere(life: Life, shop: Shop) -> None:
    """Make a cluster of its own from a moment of the continuous backup, while this cluster works."""
    shop.phase = "a copy is restored elsewhere"
    before = set(shop.done)
    async with open_client(life.own) as client:
        moment = int((await client.execute("SELECT max(clock) FROM bedrockish_journal", read="strict")).value())
    new = life.home / "elsewhere.db"

    async def restored() -> bool:
        assert life.backup is not None
        assert life.backup.poll() is None, (life.home / "backup.log").read_text()
        words = ("restore", "--from", str(life.home / "kept"), "--to", str(new), "--at", str(moment))
        done = await trio.to_thread.run_sync(lambda: program(*words))
        return done.returncode == 0

    await until("the backup has that moment", restored)
    port = free_ports(1)[0]
    node = LocalNode("Z", port, life.home)
    node.config.write_text(f'node = "Z"\ndatabase = "{new.name}"\nlisten = "127.0.0.1:{port}"\ncluster = "copy"\n')
    node.start()
    try:

        def count() -> set[str]:
            with connect(f"bedrockish://127.0.0.1:{port}/?connect_timeout=40") as db:
                db.execute("INSERT INTO orders VALUES ('elsewhere')")
                return {name for (name,) in db.execute("SELECT name FROM orders").rows}

        assert before <= await trio.to_thread.run_sync(count)
    finally:
        node.kill()


async def is_restarted(life: Life, shop: Shop) -> None:
    """Node after node, in order."""
    for node in life.cluster.nodes:
        shop.phase = "nodes are restarted"
        await life.in_the_end("upgrade", "check", life.own)
        await life.end(node)
        node.start()
        await ready(life.cluster)
    await shop.moves()


async def has_no_room(life: Life, shop: Shop) -> None:
    """Fill the disk of one node, which continues by itself when there is room."""
    shop.phase = "a disk is full"
    node = life.cluster.nodes[2]
    limit_files(node, LIMIT_BYTES)

    async def waits() -> bool:
        return "cannot_write" in {one["code"] for one in (await status_of(life.cluster, 2))["troubles"]}

    await until("C waits", waits)
    await shop.moves()
    limit_files(node, resource.RLIM_INFINITY)
    await ready(life.cluster)
    await shop.moves()


async def loses_a_disk(life: Life, shop: Shop) -> None:
    """Lose the machine of one node with its disk, and let another machine take its place."""
    shop.phase = "a disk is lost"
    lost = life.cluster.nodes.pop(4)
    lost.kill()
    shutil.rmtree(lost.directory)
    life.last = SOURCES
    successor = f"127.0.0.1:{free_ports(1)[0]}"
    await life.do("member", "replace", life.own, lost.name, "F", successor)
    await life.grow("F", successor)
    await shop.moves()


async def shrinks(life: Life, shop: Shop) -> None:
    """Remove a node in order, and then a dead one."""
    shop.phase = "F leaves"
    await life.do("member", "demote", life.own, "F", "--force")
    await life.do("member", "remove", life.own, "F")
    await life.end(life.cluster.nodes[4])
    await shop.moves()
    shop.phase = "D dies and is removed"
    life.cluster.nodes[3].kill()
    await shop.moves()
    await life.do("member", "demote", life.own, "D")
    await life.do("member", "remove", life.own, "D")
    del life.cluster.nodes[3:]
    shop.url = life.url(login=login("shop"))
    await shop.moves()
