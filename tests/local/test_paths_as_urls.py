"""A path in place of a URL in each interface of a Python program."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

import bedrockish
from bedrockish import dbapi
from bedrockish.api.url import Address, parse_url
from bedrockish.client.local_file import is_path
from bedrockish.client.request_builder import target_of
from bedrockish.errors import ConfigError
from bedrockish.sqlalchemy.urls import client_url, make_url
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode, clean_environment


def test_path_is_distinguished_from_a_url() -> None:
    assert target_of("/var/lib/A.sqlite").local == "/var/lib/A.sqlite"
    assert target_of(Path("/var/lib/A")).addresses == (Address("/var/lib/A-sock", 0),)
    assert str(target_of("/var/lib/A.sqlite")) == "/var/lib/A.sqlite"
    both = target_of("bedrockish://h:1,i:2/?local=/var/lib/A.sqlite")
    assert both.addresses == (Address("/var/lib/A.sqlite-sock", 0), Address("h", 1), Address("i", 2))
    assert both.discover
    assert parse_url("bedrockish:////var/lib/A.sqlite?read=stale").local == "/var/lib/A.sqlite"
    assert parse_url("bedrockish:///A.sqlite").local == "A.sqlite"
    assert parse_url("bedrockish:///?local=a%20b.db").local == "a b.db"
    assert not is_path("localhost:7373")
    assert not is_path("bedrockish://host/?local=/a/b.db")
    for wrong in ("localhost:7373", "bedrockish://h:1/name", "bedrockish:///", "postgres:///a.sqlite"):
        with pytest.raises(ConfigError):
            target_of(wrong)


def test_relative_path_is_taken_from_the_current_folder(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(node.directory)
    with bedrockish.connect("A.sqlite") as db:
        assert db._client.local is not None
        assert db.execute("SELECT 1").value() == 1


def test_symbolic_link_is_followed(node: LocalNode, tmp_path: Path) -> None:
    """SQLite keeps the -wal and the -shm next to the real file."""
    (tmp_path / "link.sqlite").symlink_to(node.database)
    with bedrockish.connect(tmp_path / "link.sqlite") as db:
        assert db.read_here("SELECT 1", None, "session") is not None


def test_bedrockish_url_may_be_a_path(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCKISH_URL", str(node.database))
    with bedrockish.connect() as db:
        assert db.read_here("SELECT 1", None, "session") is not None


def test_sqlalchemy_opens_a_file(node: LocalNode, table: str) -> None:
    engine = create_engine(f"bedrockish:///{node.database}")
    with engine.begin() as db:
        db.execute(text(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)"))
    with engine.begin() as db:
        db.execute(text(f"INSERT INTO {table} VALUES (1, 'one')"))
    with engine.connect() as db:
        assert db.execute(text(f"SELECT a FROM {table}")).scalar() == "one"
        assert db.connection.dbapi_connection._link._client.local is not None  # type: ignore[union-attr]
    engine.dispose()
    url = make_url(f"bedrockish:///{node.database}?read=stale")
    assert url.database == str(node.database)
    assert client_url(url, {"read": "stale"}).startswith("bedrockish:///?")
    with pytest.raises(ConfigError, match="names the database"):
        client_url(make_url("bedrockish://h:1/").set(database="x"), {})


def test_sqlalchemy_on_asyncio_opens_a_file(node: LocalNode, table: str) -> None:
    import asyncio

    async def work() -> None:
        engine = create_async_engine(f"bedrockish:///{node.database}")
        async with engine.connect() as db:
            assert (await db.execute(text("SELECT 1"))).scalar() == 1
        await engine.dispose()

    asyncio.run(work())


def test_django_opens_a_file(node: LocalNode, table: str) -> None:
    code = f"""
import pathlib, django
from django.conf import settings
name = pathlib.Path({str(node.database)!r})
settings.configure(DATABASES={{"default": {{"ENGINE": "bedrockish.django", "NAME": name}}}})
django.setup()
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
    cursor.execute("INSERT INTO {table} VALUES (%s, %s)", [1, "one"])
    cursor.execute("SELECT a FROM {table} WHERE id = %s", [1])
    print(cursor.fetchone()[0])
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=clean_environment()
    )
    assert told.stdout == "one\n", told.stderr


def test_shell_opens_a_file(node: LocalNode) -> None:
    told = program("sql", node.database, "SELECT 4 / 2, 'it'")
    assert told.stdout.splitlines()[-1].split() == ["2", "it"], (told.stdout, told.stderr)


def test_dbapi_takes_a_path(node: LocalNode) -> None:
    for given in (str(node.database), node.database):
        with dbapi.connect(given) as db:
            assert db.execute("SELECT 1").fetchone() == (1,)
        db.close()
    with pytest.raises(dbapi.OperationalError, match="bedrockish serve"):
        dbapi.connect(node.directory / "nothing.sqlite")


def test_connection_uses_the_nodes_if_its_local_file_is_not_served(alone: LocalCluster, tmp_path: Path) -> None:
    with bedrockish.connect(alone.url(options=f"local={tmp_path}/A.sqlite")) as db:
        assert db.read_here("SELECT 1", None, "session") is None
        assert db.execute("SELECT 1").value() == 1
