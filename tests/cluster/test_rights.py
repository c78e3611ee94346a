"""Three real nodes whose cluster has users of its own: what each may do, at every interface and at every node."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import connect, open_client
from bedrockish.api.requests import PROMOTE, MemberChange
from bedrockish.client.feed import Changes
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import AuthenticationError, BedrockishError, CommandIdError, ForbiddenError, MembershipError
from bedrockish_journal.model.transaction import decode_transaction
from tests.cluster.interfaces import INTERFACES, Caller, RefusedError
from tests.cluster.story import BOUND_S, level, ready
from tests.forked import program
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

ROLES = {"nina": None, "rita": "reader", "will": "writer", "otto": "owner", "adam": "admin"}
KINDS = {
    "reader": ("nina", "rita", "SELECT count(*) FROM item"),
    "writer": ("rita", "will", "INSERT INTO item(note) VALUES ('{}')"),
    "owner": ("will", "otto", "CREATE TABLE IF NOT EXISTS made_{}(x)"),
}
SECRET = "scrypt:"


def user(url: str, *arguments: str, password: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``bedrockish user``."""
    return program("user", arguments[0], url, *arguments[1:], stdin=password + "\n")


def done(found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes without users in their configurations; the first one is made by the command line."""
    cluster = LocalCluster(tmp_path_factory.mktemp("rights") / "three")
    cluster.add_http()
    cluster.write_files()
    for node in cluster.nodes:
        node.config.write_text('http_token = "t"\n' + node.config.read_text())
    try:
        for node in cluster.nodes:
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)")
            db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER)")
            db.execute("CREATE TABLE bill(month TEXT PRIMARY KEY, total INTEGER)")
            db.execute("INSERT INTO account VALUES (1, 100), (2, 0)")
        plain = cluster.url()
        first = user(plain, "add", "rita", "--role", "reader", password="rita!")
        assert (first.returncode, "no admin among them" in first.stderr) == (2, True)
        done(user(plain, "add", "adam", "--role", "admin", password="adam!"))
        cluster.login = "adam:adam!@"
        for name, role in ROLES.items():
            if name != "adam":
                done(user(cluster.url(), "add", name, *(["--role", role] if role else []), password=f"{name}!"))
        trio.run(level, cluster)
        yield cluster
    finally:
        cluster.stop()


def caller(cluster: LocalCluster, name: str, node: int = 0) -> Caller:
    return Caller(cluster, node, name, f"{name}!")


def test_users_are_a_table_without_hashes(cluster: LocalCluster) -> None:
    expected = sorted(ROLES.items())
    for node in range(3):
        with connect(caller(cluster, "rita", node).url) as db:
            assert db.execute("SELECT user_name, role FROM bedrockish_users ORDER BY 1", read="strict").rows == expected
    listed = json.loads(done(user(cluster.url(), "list", "--json")))
    assert listed == [{"user_name": name, "role": role, "tables": None} for name, role in expected]


@pytest.mark.parametrize("interface", INTERFACES)
def test_every_interface_requires_the_role_that_a_statement_needs(cluster: LocalCluster, interface: str) -> None:
    """A permitted user runs the same text first, so a cached plan does not bypass the check."""
    come = INTERFACES[interface]
    for number, (role, (without, enough, sql)) in enumerate(KINDS.items()):
        here = number % 3
        text = sql.format(interface)
        come(caller(cluster, enough, here), text)
        with pytest.raises(RefusedError, match=f"{without} needs the role {role}"):
            come(caller(cluster, without, here), text)
        with pytest.raises(RefusedError, match=r"wrong user or password|send the h"):
            come(Caller(cluster, here, f"eve-{role}-{interface}", "wrong"), text)


@pytest.mark.parametrize("interface", INTERFACES)
def test_every_interface_enforces_roles_for_single_tables(cluster: LocalCluster, interface: str) -> None:
    """Una has a role for the table "item" alone. Other tables are refused, also by texts compiled for other users."""
    _add_una(cluster)
    come = INTERFACES[interface]
    for node in range(1 if interface == "shell" else 2):  # each time a program of its own
        una = caller(cluster, "una", node)
        for mine in ("SELECT count(*) FROM item", f"INSERT INTO item(note) VALUES ('una {interface}')"):
            come(una, mine)
        for sql, table, role in (
            ("SELECT count(*) FROM account", "account", "reader"),
            ("SELECT count(*) FROM item, account", "account", "reader"),
            ("UPDATE account SET balance = 0 WHERE id = 77", "account", "writer"),
            ("INSERT INTO item(note) SELECT balance FROM account", "account", "reader"),
        ):
            come(caller(cluster, "will", node), sql)
            with pytest.raises(RefusedError, match=f"una needs the role {role}.*--table {table}"):
                come(una, sql)
        with pytest.raises(RefusedError, match="una needs the role owner"):
            come(una, f"CREATE TABLE IF NOT EXISTS made_{interface}(x)")


def test_roles_for_single_tables_exclude_journal_and_feed(cluster: LocalCluster) -> None:
    """Journal and feed contain all tables, so a user of single tables may read neither.

    It may still ask for the outcomes of its own commands, and finish open transactions.
    """
    _add_una(cluster)
    una = caller(cluster, "una")
    for name in ("the feed", "the feed by HTTP", "bedrockish_changes", "open transactions"):
        with pytest.raises(RefusedError, match="una needs the role reader"):
            CALLS[name][2](una)
    CALLS["explain"][2](una)
    with connect(una.url) as db:
        db.execute("INSERT INTO item(note) VALUES ('unas')", command="unas-own")
        assert db.settle("unas-own")
        db.execute("BEGIN")
        db.execute("INSERT INTO item(note) VALUES ('unas')")
        db.execute("COMMIT")
        rows = db.stream("SELECT note FROM item")
        assert rows is not None


def test_client_without_a_known_user_is_refused(cluster: LocalCluster) -> None:
    """Clients without a name and with an unknown name are refused."""
    for node in cluster.nodes:
        with pytest.raises(AuthenticationError):
            connect(f"bedrockish://127.0.0.1:{node.port}/?discover=no&connect_timeout=40")
        with pytest.raises(AuthenticationError):
            connect(f"bedrockish://eve:x@127.0.0.1:{node.port}/?discover=no&connect_timeout=40")
        for path in ("/status", "/changes", "/metrics", "/db/query?sql=SELECT+1"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}{path}", timeout=60)
            with caught.value as answer:
                assert answer.code == 401


def _add_una(cluster: LocalCluster) -> None:
    """Add a user with a role for the table "item" alone, unless she exists."""
    with connect(cluster.url()) as db:
        if "una" not in dict(db.execute("SELECT user_name, role FROM bedrockish_users", read="strict").rows):
            done(user(cluster.url(), "add", "una", password="una!"))
            done(user(cluster.url(), "grant", "una", "writer", "--table", "item"))
            told = dict(db.execute("SELECT user_name, tables FROM bedrockish_users", read="strict").rows)
            assert told["una"] == '{"item": "writer"}'
            odd = user(cluster.url(), "grant", "una", "reader", "--table", "itme")
            done(odd)
            assert odd.stderr == "there is no table itme now: the role is for the next one of that name\n"
            done(user(cluster.url(), "revoke", "una", "reader", "--table", "itme"))
            trio.run(level, cluster)


def _backup(who: Caller, folder: Path) -> None:
    found = program("backup", who.url, str(folder / f"{who.user}.db"))
    if found.returncode:
        raise RefusedError(found.stderr)


def _typed(action: Callable[[Any], object], who: Caller) -> None:
    async def run() -> None:
        async with open_client(who.url) as client:
            found: Any = action(client)
            if hasattr(found, "__aiter__"):
                async for _ in found:
                    break
            elif hasattr(found, "__aenter__"):
                async with found as rows:
                    async for _ in rows:
                        break
            else:
                await found

    try:
        trio.run(run)
    except BedrockishError as error:
        raise RefusedError(f"{error.code} {error.message}") from None
    except BaseExceptionGroup as group:
        raise RefusedError(repr(group.exceptions)) from None


CALLS: dict[str, tuple[str, str, Callable[[Caller], None]]] = {
    "a stream": ("nina", "rita", lambda who: _typed(lambda c: c.stream("SELECT * FROM item"), who)),
    "explain": ("rita", "will", lambda who: _typed(lambda c: c.explain("DELETE FROM item"), who)),
    "the feed": ("nina", "rita", lambda who: _typed(lambda c: Changes(c), who)),
    "the feed by HTTP": ("nina", "rita", lambda who: who.post("/changes", None)),
    "bedrockish_changes": (
        "nina",
        "rita",
        lambda who: _typed(lambda c: c.execute("SELECT * FROM bedrockish_changes"), who),
    ),
    "the journal": (
        "otto",
        "adam",
        lambda who: _typed(lambda c: c.execute("SELECT hex(body) FROM 'bedrockish_journal'"), who),
    ),
    "open transactions": ("nina", "rita", lambda who: _typed(lambda c: c.upkeep({"do": "transactions"}), who)),
    "rows as a stream by HTTP": ("nina", "rita", lambda who: who.post("/db/stream", ["SELECT * FROM item"])),
    "a question in a URL": ("nina", "rita", lambda who: who.post("/db/query?sql=SELECT+count(*)+FROM+item", None)),
    "pruning": ("otto", "adam", lambda who: _typed(lambda c: c.upkeep({"do": "prune", "older_than_s": 1e9}), who)),
    "the clock": ("otto", "adam", lambda who: _typed(lambda c: c.upkeep({"do": "clock"}), who)),
    "holding the journal": ("otto", "adam", lambda who: who.post(f"/changes?hold={who.user}", None)),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_asks_for_its_role(cluster: LocalCluster, name: str) -> None:
    without, enough, call = CALLS[name]
    for node in range(2):
        call(caller(cluster, enough, node))
        with pytest.raises(RefusedError, match=f"{without} needs the role {ROLES[enough]}"):
            call(caller(cluster, without, node))


def test_members_users_and_copies_are_an_admins(cluster: LocalCluster, tmp_path: Path) -> None:
    otto = caller(cluster, "otto").url
    with pytest.raises(RefusedError, match="otto needs the role admin"):
        _backup(caller(cluster, "otto"), tmp_path)
    _backup(caller(cluster, "adam"), tmp_path)
    for found in (
        program("member", "demote", otto, "C"),
        user(otto, "grant", "otto", "admin"),
        user(otto, "add", "mallory", "--role", "admin", password="x"),
        user(otto, "remove", "adam"),
        user(otto, "passwd", "adam", password="mine"),
    ):
        assert (found.returncode, "otto needs the role admin" in found.stderr) == (2, True), found
    config = tmp_path / "D.toml"
    config.write_text(f'node = "D"\ndatabase = "{tmp_path / "D.sqlite"}"\nlisten = "127.0.0.1:7999"\n')
    joined = program("join", otto, "--config", str(config), "--no-serve")
    assert (joined.returncode, "otto needs the role admin" in joined.stderr) == (2, True), joined.stderr
    with pytest.raises(ForbiddenError) as caught:
        trio.run(_change, otto, MemberChange(PROMOTE, "C"))
    assert caught.value.details == {"user": "otto", "role": "admin"}


def test_only_admins_can_read_password_hashes(cluster: LocalCluster) -> None:
    """The hashes are neither in a reader's view of the journal, nor in the meta table, nor in any other result."""
    asked = [
        "SELECT * FROM bedrockish_journal",
        "SELECT body FROM bedrockish_journal AS j WHERE kind = 'members'",
        "WITH RECURSIVE n(i) AS (SELECT 1) SELECT j.*, m.* FROM n, bedrockish_journal j, bedrockish_meta m",
        "SELECT (SELECT group_concat(hex(body)) FROM bedrockish_journal)",
        'SELECT "bedrockish_journal".body, value FROM bedrockish_journal, [bedrockish_meta]',
        "SELECT * FROM bedrockish_meta",
        "SELECT 1 FROM bedrockish_meta WHERE key = 'membership' AND instr(value, 'scrypt') > 0",
    ]
    refused = [
        "SELECT body FROM main.bedrockish_journal",
        "SELECT body FROM 'bedrockish_journal'",
        "SELECT body FROM bedrockish_open_journal",
        "WITH bedrockish_open_journal AS (SELECT body FROM main.bedrockish_journal) "
        "SELECT * FROM bedrockish_open_journal",
        "VALUES ((SELECT max(body) FROM bedrockish_journal))",
        "SELECT 1; SELECT body FROM bedrockish_journal",
        "EXPLAIN SELECT body FROM bedrockish_journal",
    ]
    secret = SECRET.encode()
    with connect(caller(cluster, "adam").url) as db:
        bodies = db.execute("SELECT body FROM bedrockish_journal WHERE kind = 'members'", read="strict").rows
        assert any(secret in body for (body,) in bodies)
        assert db.execute("SELECT count(*) FROM bedrockish_meta WHERE instr(value, 'scrypt')").value() >= 1
        db.execute("CREATE VIEW peek AS SELECT body FROM bedrockish_journal")
    for name in ("rita", "otto"):
        with connect(caller(cluster, name).url) as db:
            for sql in asked:
                rows = db.execute(sql, read="strict").rows
                assert secret not in repr(rows).encode(), sql
                assert secret.hex().encode() not in repr(rows).lower().encode(), sql
            members = db.execute("SELECT body FROM bedrockish_journal WHERE kind = 'members'").rows
            assert len(members) == len(bodies)
            assert all(decode_transaction(body).kind == "members" for (body,) in members)
            for sql in [*refused, "SELECT * FROM peek"]:
                with pytest.raises(BedrockishError):
                    db.execute(sql)
            with pytest.raises(ForbiddenError, match="needs the role admin"):
                db.execute("SELECT body FROM 'bedrockish_journal'")
            assert db.execute("SELECT * FROM bedrockish_changes WHERE row_after LIKE '%scrypt:%'").rows == []
    with connect(caller(cluster, "adam").url) as db:
        db.execute("DROP VIEW peek")


def test_the_answer_of_a_command_is_for_its_user_only(cluster: LocalCluster) -> None:
    """A reader must not take another user's command for its own, either."""
    with connect(caller(cluster, "will").url) as db:
        db.execute("INSERT INTO item(note) VALUES ('mine') RETURNING note", command="wills-own")
    for name in ("rita", "nina", "adam"):
        with connect(caller(cluster, name).url) as db, pytest.raises(CommandIdError, match="another user's"):
            db.execute("INSERT INTO item(note) VALUES ('mine') RETURNING note", command="wills-own")


async def test_revoked_rights_end_everywhere_before_the_command_returns(cluster: LocalCluster) -> None:
    """The rights end on open links, for cached statements, and for open transactions, whose COMMIT fails."""
    await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "add", "tom", "--role", "writer", password="tom!")))
    await level(cluster)
    insert = "INSERT INTO item(note) VALUES ('tom')"
    urls = [caller(cluster, "tom", node).url for node in range(3)]
    async with open_client(urls[0]) as one, open_client(urls[1]) as two, open_client(urls[2]) as three:
        for client in (one, two, three):
            await client.execute(insert)
        tx = await two.begin()
        await tx.execute(insert)
        await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "revoke", "tom", "writer")))
        with pytest.raises(BedrockishError) as caught:
            await tx.commit()
        assert caught.value.code in ("conflict", "forbidden")
        for client in (one, two, three):
            with pytest.raises(ForbiddenError, match="tom needs the role writer"):
                await client.execute(insert, read="strict")
            assert (await client.execute("SELECT count(*) FROM item WHERE note = 'tom'", read="strict")).value() == 3
        await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "remove", "tom")))
        for client in (one, two, three):
            with pytest.raises(ForbiddenError, match="does not know tom"):
                await client.execute("SELECT count(*) FROM item", read="strict")


def test_passwords_change_at_every_node(cluster: LocalCluster) -> None:
    """Each user may change their own password, and the old one is refused everywhere."""
    done(user(cluster.url(), "add", "pat", "--role", "reader", password="old"))
    trio.run(level, cluster)
    for node in range(3):
        INTERFACES["http_execute"](Caller(cluster, node, "pat", "old"), "SELECT 1")
    done(user(Caller(cluster, 0, "pat", "old").url, "passwd", "pat", password="new"))
    for node in range(3):
        _until_refused("http_execute", Caller(cluster, node, "pat", "old"))
        INTERFACES["http_execute"](Caller(cluster, node, "pat", "new"), "SELECT 1")
    weak = str(hash_password("x", bytes(16))).replace("scrypt:14", "scrypt:20")
    with pytest.raises(MembershipError, match="not the hash"):
        trio.run(_change, Caller(cluster, 0, "pat", "new").url, MemberChange("user passwd", "pat", secret=weak))
    done(user(cluster.url(), "remove", "pat"))
    for node in range(3):
        _until_refused("client", Caller(cluster, node, "pat", "new"))


async def _change(url: str, change: MemberChange) -> None:
    async with open_client(url) as client:
        await client.change_members(change)


def _until_refused(interface: str, who: Caller) -> None:
    """Wait until another node has applied the commits of one."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        try:
            INTERFACES[interface](who, "SELECT 1")
        except (RefusedError, AuthenticationError):
            return
    pytest.fail("it is still let in")


def test_last_admin_cannot_be_removed(cluster: LocalCluster) -> None:
    for last in ("revoke adam admin", "revoke adam reader", "remove adam"):
        arguments: tuple[str, ...] = tuple(last.split())
        found = user(cluster.url(), *arguments)
        assert (found.returncode, "no admin among them" in found.stderr) == (2, True), found
    wrong: list[tuple[tuple[str, ...], str]] = [
        (("add", "adam", "--role", "reader"), "there is a user adam already"),
        (("add", "no:colon"), "is not a user's name"),
        (("grant", "nobody", "reader"), "has no user nobody"),
    ]
    for arguments, says in wrong:
        found = user(cluster.url(), *arguments, password="x")
        assert (found.returncode, says in found.stderr) == (2, True), found
    done(user(cluster.url(), "grant", "rita", "owner"))
    done(user(cluster.url(), "revoke", "rita", "writer"))
    with connect(caller(cluster, "rita").url) as db:
        assert dict(db.execute("SELECT user_name, role FROM bedrockish_users", read="strict").rows)["rita"] == "reader"


async def test_link_from_before_the_first_user_has_no_rights(tmp_path: Path) -> None:
    """The cluster still has its user after all nodes were killed and started again."""
    with local_cluster(tmp_path / "three", http=True) as cluster:
        await ready(cluster)
        async with open_client(cluster.url(1, only=True)) as early:
            await early.execute("CREATE TABLE t(x)")
            await trio.to_thread.run_sync(
                lambda: done(user(cluster.url(), "add", "root", "--role", "admin", password="r"))
            )
            with pytest.raises((ForbiddenError, AuthenticationError)):
                await early.execute("SELECT * FROM t", read="strict")
        cluster.login = "root:r@"
        for node in cluster.nodes:
            node.kill()
            node.start()
        await ready(cluster)
        with pytest.raises(AuthenticationError):
            async with open_client(cluster.url().replace("root:r@", "")) as client:
                await client.execute("SELECT 1")
        async with open_client(cluster.url()) as client:
            await client.execute("INSERT INTO t VALUES (1)")


async def test_configured_user_is_an_admin_until_the_cluster_has_that_user(tmp_path: Path) -> None:
    """The configuration's user stays without rights after that, also after the user's removal and after a restart."""
    cluster = LocalCluster(tmp_path / "three", settings={"users": {"ann": str(hash_password("a", bytes(16)))}})
    cluster.write_files()
    cluster.login = "ann:a@"
    try:
        for node in cluster.nodes:
            node.start()
        await ready(cluster)

        def change(*arguments: str, password: str = "") -> None:
            done(user(cluster.url(), *arguments, password=password))

        def let_in(login: str) -> bool:
            try:
                for node in range(3):
                    connect(cluster.url(node, only=True).replace(cluster.login, login)).close()
            except AuthenticationError:
                return False
            return True

        await trio.to_thread.run_sync(lambda: change("add", "root", "--role", "admin", password="r"))
        await trio.to_thread.run_sync(lambda: change("add", "bob", "--role", "reader", password="b"))
        cluster.login = "root:r@"
        await trio.to_thread.run_sync(lambda: change("add", "ann", "--role", "reader", password="other"))
        await level(cluster)
        assert not await trio.to_thread.run_sync(let_in, "ann:a@")
        assert await trio.to_thread.run_sync(let_in, "ann:other@")
        await trio.to_thread.run_sync(lambda: change("remove", "ann"))
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        await ready(cluster)
        assert not await trio.to_thread.run_sync(let_in, "ann:a@")
    finally:
        cluster.stop()


def test_certificate_of_a_client_is_a_user_and_that_of_a_node_is_not(tmp_path: Path) -> None:
    """With TLS, and no user in any configuration: passwords count from the first user on, without a restart."""
    certs = tmp_path / "certs"
    hosts = [f"{name}=127.0.0.1" for name in "ABC"]
    assert program("tls", str(certs), *hosts, "--client", "app", "--client", "eve").returncode == 0
    cluster = LocalCluster(tmp_path / "three")
    cluster.write_files()
    for node in cluster.nodes:
        node.config.write_text(node.config.read_text() + f'\n[security]\ntls = "{certs}"\n')
    ca = f"ca={certs / 'ca.pem'}"

    def options(name: str) -> str:
        return f"{ca}&cert={certs / f'{name}.pem'}&key={certs / f'{name}-key.pem'}"

    cluster.options = options("app")
    try:
        for node in cluster.nodes:
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE t(x)")
            with pytest.raises(BedrockishError):
                connect(cluster.url().replace(options("app"), f"{ca}&connect_timeout=1"))
            done(user(cluster.url(), "add", "root", "--role", "admin", password="r"))
            with pytest.raises(ForbiddenError, match="does not know client:app"):
                db.execute("SELECT * FROM t", read="strict")
        cluster.login, cluster.options = "root:r@", ca
        trio.run(ready, cluster)
        done(user(cluster.url(), "add", "app", "--role", "reader", password="unused"))
        with connect(cluster.url()) as db:
            db.execute("INSERT INTO t VALUES (1)")
        trio.run(level, cluster)
        cluster.login, cluster.options = "", options("app")
        for node_number in range(3):
            with connect(cluster.url(node_number, only=True)) as db:
                assert db.execute("SELECT * FROM t", read="strict").rows == [(1,)]
                with pytest.raises(ForbiddenError, match="client:app needs the role writer"):
                    db.execute("INSERT INTO t VALUES (2)")
        cluster.options = options("eve")
        with pytest.raises(ForbiddenError, match="does not know client:eve"):
            connect(cluster.url())
        # A node uses its own certificate to ask the others when it compares tables.
        cluster.options = options("A")
        with connect(cluster.url(1, only=True)) as db:
            assert db.execute("SELECT count(*) FROM main.bedrockish_meta").value() > 0
        cluster.login, cluster.options = "root:r@", ca
        compared = program("verify", cluster.url())
        assert compared.returncode == 0, compared.stdout + compared.stderr
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        trio.run(ready, cluster)  # it takes passwords from its start on
        with connect(cluster.url(0, only=True)) as db:
            assert db.execute("SELECT * FROM t", read="strict").rows == [(1,)]
    finally:
        cluster.stop()
