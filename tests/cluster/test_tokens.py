"""Tokens of three real nodes' users: where they are accepted, their rights, and their ends."""

import base64
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from bedrockish import Client, connect, open_client
from bedrockish.common.access_token import PREFIX, AccessToken, make_token
from bedrockish.errors import AuthenticationError, ConfigError, ForbiddenError, OutcomeUnknownError, UnavailableError
from tests.cluster.interfaces import INTERFACES, Caller, RefusedError
from tests.cluster.story import BOUND_S, level, ready, until
from tests.cluster.test_rights import done, user
from tests.forked import program
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield three nodes with an admin, and a user without any role."""
    cluster = LocalCluster(tmp_path_factory.mktemp("tokens") / "three")
    cluster.add_http()
    cluster.write_files()
    try:
        for node in cluster.nodes:
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)")
        done(user(cluster.url(), "add", "adam", "--role", "admin", password="adam!"))
        cluster.login = "adam:adam!@"
        done(user(cluster.url(), "add", "nina", password="nina!"))
        trio.run(level, cluster)
        yield cluster
    finally:
        cluster.stop()


def _bearer(cluster: LocalCluster, node: int, token: str, sql: str) -> int:
    """Send a statement with a token by HTTP; return the status."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.nodes[node].http_port}/db/execute",
        json.dumps([sql]).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_token_has_the_rights_of_its_user_until_it_expires(cluster: LocalCluster) -> None:
    """Every node accepts the token. Users make tokens for themselves, admins for others. A forged one is refused."""
    done(user(cluster.url(), "add", "tina", "--role", "writer", password="1"))
    trio.run(level, cluster)
    mine = Caller(cluster, 0, "tina", "1").url
    token = done(user(mine, "token", "tina", "--for", "1h")).strip()
    insert = "INSERT INTO item(note) VALUES ('token')"
    for node in range(3):
        assert _bearer(cluster, node, token, insert) == 200
        assert _bearer(cluster, node, token, "CREATE TABLE no(x)") == 403
    with connect(cluster.url()) as db:
        asked = "SELECT DISTINCT user_name FROM bedrockish_changes WHERE row_after LIKE '%\"token\"%'"
        assert db.execute(asked, read="strict").rows == [("tina",)]
    for url, name in ((mine, "adam"), (mine, "nobody"), (Caller(cluster, 0, "nina", "nina!").url, "tina")):
        assert "needs the role admin" in user(url, "token", name).stderr
    assert "has no user 'nobody'" in user(cluster.url(), "token", "nobody").stderr
    assert "up to 366 days" in user(mine, "token", "tina", "--for", "400d").stderr
    payload, mac = token.removeprefix(PREFIX).split(".")
    other = make_token(AccessToken("adam", 1 << 50), "guess", "guess").removeprefix(PREFIX)
    forged = [f"{PREFIX}{other}", f"{PREFIX}{other.split('.')[0]}.{mac}", f"{PREFIX}{payload}.{mac[::-1]}"]
    for wrong in (*forged, PREFIX, f"{PREFIX}.", token[:-4], token + "x" * 1000, f"{PREFIX}{'A' * 40}.{mac}"):
        assert _bearer(cluster, 1, wrong, "SELECT 1") == 401, wrong
    done(user(cluster.url(), "remove", "tina"))


def test_token_is_refused_after_its_expiry_a_new_password_or_its_users_removal(cluster: LocalCluster) -> None:
    done(user(cluster.url(), "add", "tess", "--role", "writer", password="1"))

    def becomes(token: str, status: int) -> None:
        for node in range(3):
            _until(lambda node=node: _bearer(cluster, node, token, "SELECT 1") == status)  # type: ignore[misc]

    def make() -> str:
        return done(user(cluster.url(), "token", "tess")).strip()

    brief_s = 4.0
    while _bearer(cluster, 0, brief := _token_of(cluster, "tess", brief_s), "SELECT 1") != 200:
        brief_s *= 2  # a busy machine takes longer
        assert brief_s < BOUND_S
    token = make()
    becomes(brief, 401)
    becomes(token, 200)
    done(user(cluster.url(), "passwd", "tess", password="2"))
    becomes(token, 401)
    token = make()
    becomes(token, 200)
    done(user(cluster.url(), "revoke", "tess", "reader"))
    becomes(token, 403)
    done(user(cluster.url(), "remove", "tess"))
    becomes(token, 401)
    done(user(cluster.url(), "add", "tess", "--role", "writer", password="2"))
    becomes(make(), 200)
    assert [_bearer(cluster, node, token, "SELECT 1") for node in range(3)] == [401] * 3
    done(user(cluster.url(), "remove", "tess"))


@pytest.fixture(scope="module")
def mara(cluster: LocalCluster) -> Iterator[str]:
    """Return the password of a new user with the role writer, for tests that make tokens."""
    done(user(cluster.url(), "add", "mara", "--role", "writer", password="first"))
    trio.run(level, cluster)
    yield "first"
    done(user(cluster.url(), "remove", "mara"))


def _token_of(cluster: LocalCluster, name: str, for_s: float = 3600) -> str:
    """Make a token within this process, so that a brief one does not expire before its use."""

    async def ask() -> str:
        async with open_client(cluster.url()) as client:
            return str((await client.upkeep({"do": "token", "user": name, "for_s": for_s}))["token"])

    with ThreadPoolExecutor() as elsewhere:
        return elsewhere.submit(trio.run, ask).result()


@pytest.mark.parametrize("interface", INTERFACES)
def test_token_replaces_the_password_at_every_interface(cluster: LocalCluster, mara: str, interface: str) -> None:
    """The token gives only the rights of its user, and a forged one counts as a wrong password."""
    come, here, token = INTERFACES[interface], list(INTERFACES).index(interface) % 3, _token_of(cluster, "mara")
    forged = token[:-6] + ("AAAAAA" if token[-6:] != "AAAAAA" else "BBBBBB")
    come(Caller(cluster, here, "mara", token), f"INSERT INTO item(note) VALUES ('token {interface} ')")
    with pytest.raises(RefusedError, match="mara needs the role owner"):
        come(Caller(cluster, here, "mara", token), "CREATE TABLE maras(x)")
    with pytest.raises(RefusedError, match=r"this token is mara's, and not of the user 'adam'|send the h"):
        come(Caller(cluster, here, "adam", token), "SELECT 1")
    with pytest.raises(RefusedError, match=r"this token is not valid here|send the h"):
        come(Caller(cluster, here, "mara", forged), "SELECT 1")
    with connect(cluster.url()) as db:
        asked = "SELECT count(*) FROM bedrockish_changes WHERE user_name = 'mara' AND row_after LIKE ?"
        assert db.execute(asked, [f"%token {interface} %"], read="strict").value() == 1


def test_token_can_change_no_users_or_tokens(cluster: LocalCluster, mara: str) -> None:
    for name, mine in (("mara", "mara"), ("adam", "mara")):
        token = _token_of(cluster, name)
        url = Caller(cluster, 1, name, token).url
        assert "a token cannot make other tokens" in user(url, "token", mine).stderr
        assert "cannot change users or passwords" in user(url, "passwd", mine, password="x").stderr
        assert "cannot change users or passwords" in user(url, "add", "eve", "--role", "admin", password="x").stderr
    with connect(Caller(cluster, 1, "mara", mara).url) as db:
        db.execute("SELECT 1")


async def test_link_and_open_transaction_end_when_the_token_expires(cluster: LocalCluster, mara: str) -> None:
    """A row that an open transaction of a token's has locked is free a moment after the token has ended."""
    token = _token_of(cluster, "mara", 8)
    url = Caller(cluster, 0, "mara", token).url
    async with open_client(cluster.url()) as other, open_client(url) as client:

        async def none_is_open() -> bool:
            return bool((await other.status())["open_transactions"] == 0)

        await other.execute("INSERT INTO item(id, note) VALUES (777, 'new')")
        with pytest.raises(UnavailableError, match=r"the token of mara has ended.*it did not happen"):  # noqa: PT012
            async with client.transaction() as mine:
                await mine.execute("UPDATE item SET note = 'mara' WHERE id = 777")
                assert (await other.status())["open_transactions"] == 1
                await until("the transaction has ended", none_is_open)
                await mine.execute("UPDATE item SET note = 'again' WHERE id = 777")
        with pytest.raises(AuthenticationError, match="the token of mara has ended"):
            await client.execute("SELECT 1")
        assert (await other.execute("SELECT note FROM item WHERE id = 777", read="strict")).value() == "new"


async def _ask_for_ever(client: Client) -> None:
    for number in itertools.count():
        with suppress(OutcomeUnknownError):  # a busy disk delayed a request, and its link ended
            await client.execute("INSERT INTO item(note) VALUES (?)", [f"mona {number}"], timeout=5)
        await trio.sleep(0.05)


@pytest.mark.parametrize("how", ["password", "user"])
async def test_link_ends_when_the_tokens_user_or_password_changes(cluster: LocalCluster, how: str) -> None:
    await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "add", "mona", "--role", "writer", password="1")))
    await level(cluster)
    token = await trio.to_thread.run_sync(_token_of, cluster, "mona")
    async with open_client(Caller(cluster, 2, "mona", token).url) as client:
        await client.execute("SELECT 1")
        if how == "password":
            await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "passwd", "mona", password="2")))
        else:
            await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "remove", "mona")))
        # The request that ran when the user was removed is refused for that reason.
        says = "this token is not valid here|does not know mona"
        with trio.fail_after(60), pytest.raises((AuthenticationError, ForbiddenError), match=says):
            await _ask_for_ever(client)
    if how == "password":
        await trio.to_thread.run_sync(lambda: done(user(cluster.url(), "remove", "mona")))


def test_program_uses_the_current_content_of_its_token_file(cluster: LocalCluster, mara: str, tmp_path: Path) -> None:
    """The file gets a new token while the program runs, and no request fails."""
    file = tmp_path / "token"
    file.write_text(_token_of(cluster, "mara", 5) + "\n")
    url = f"bedrockish://mara@127.0.0.1:{cluster.nodes[1].port}/?discover=no&password_file={file}"
    ends = time.monotonic() + 8  # a link lasts a moment longer than its token
    with connect(url) as db:
        number = 0
        db.execute("INSERT INTO item(id, note) VALUES (900, '0')")
        file.write_text(_token_of(cluster, "mara"))
        while time.monotonic() < ends:
            number += 1
            db.execute("UPDATE item SET note = ? WHERE id = 900", [str(number)])
        assert db.execute("SELECT note FROM item WHERE id = 900", read="strict").value() == str(number)
    for text, says in (("", "is empty"), (None, "cannot be read")):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            connect(url).execute("SELECT 1")
    shown = program("sql", url, "SELECT 1")
    assert (shown.returncode, "Traceback" in shown.stderr) == (2, False), shown.stderr


def _until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition, such as the application of a change at another node, or the end of a time."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        if is_so():
            return
        time.sleep(0.05)
    pytest.fail("it does not come to be")


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_feed_over_http_ends_with_the_token_of_its_reader(cluster: LocalCluster, mara: str, scheme: str) -> None:
    """A reader that follows may stay for months, and a token should not live as long as a connection."""
    token = _token_of(cluster, "mara", 3)
    given = token if scheme == "Bearer" else base64.b64encode(f"mara:{token}".encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.nodes[0].http_port}/changes?follow=true",
        headers={"Authorization": f"{scheme} {given}"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        *_, last = reply.read().splitlines()
    assert json.loads(last)["error"]["code"] == "authentication"


def test_rows_over_http_end_with_the_token_of_their_reader(cluster: LocalCluster, mara: str) -> None:
    """A slow reader of a stream or a cursor gets no rows after the token's end."""
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 60000) SELECT i, zeroblob(1000) FROM n"
    asked: dict[str, object] = {"/db/stream": [many], "/v3/cursor": {"batch": {"steps": [{"stmt": {"sql": many}}]}}}
    for path, body in asked.items():
        token = _token_of(cluster, "mara", 3)
        request = urllib.request.Request(
            f"http://127.0.0.1:{cluster.nodes[0].http_port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            reply.readline()
            time.sleep(5)
            *_, last = reply.read().splitlines()
        assert b"has ended; make another one" in last, path
