"""Django migrates on three real nodes while others read and write: each migration is one transaction, as on SQLite."""

import os
import sqlite3
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from bedrockish import open_client
from bedrockish.embedded import Node
from tests.cluster.schema_load import Load
from tests.cluster.story import PATIENT, heard, judge_files, level, ready, rows
from tests.cluster.test_plugins import with_plugins
from tools.cluster import SOURCES, LocalCluster

pytestmark = pytest.mark.cluster


def manage(url: str, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    program = [sys.executable, "-m", "tests.django_site.manage", url, *command]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


async def test_django_migrates_there_and_back_under_load(cluster: LocalCluster) -> None:
    """Tables with references to them are rebuilt, with rows read and written in between, and savepoints."""
    await ready(cluster)
    load = Load(cluster)
    await load.prepare()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(load.write, number)
        for index, command in enumerate((["migrate", "shop"], ["migrate", "shop", "0001"], ["migrate"])):
            url = cluster.url(index, only=True, options=PATIENT)
            said = await trio.to_thread.run_sync(manage, url, *command)
            assert "OK" in said
            await heard(cluster, index)
        load.stopping = True
    assert load.failures == []
    await level(cluster)  # the last change is in force at this node, too
    async with open_client(cluster.url()) as client:
        history = (await client.execute("SELECT state, statements FROM bedrockish_schema")).rows
    # Each transaction of Django is one change, both times forward; on the way back, Django notes that in a later
    # transaction.
    second = [sql for _, sql in history if "0002_second" in sql]
    assert len(second) == 2
    assert all("django_migrations" in one and 'ALTER TABLE "new__shop_author"' in one for one in second)
    assert {state for state, _ in history} == {"active"}
    cluster.stop()
    judge_files(cluster)
    node = cluster.nodes[2]
    assert rows(node, "SELECT name, rank FROM shop_author ORDER BY id") == [("Ann", 20), ("Ben", 0)]
    assert rows(node, "SELECT count(*), sum(pages), count(title) FROM shop_book") == [(20, 230, 20)]
    assert rows(node, "SELECT count(*) FROM shop_book WHERE author_id = 1") == [(20,)]


def test_django_lookups_functions_and_retries_work(tmp_path: Path) -> None:
    """The nodes execute the lookups and functions that Django has in Python; a block that lost is executed again."""
    with with_plugins(tmp_path / "nodes", "bedrockish.django.functions") as cluster:
        trio.run(ready, cluster)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
        program = [sys.executable, "-m", "tests.django_site.features", cluster.url(options=PATIENT)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=200, env=environment, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3_000:]


def test_django_refuses_tests_on_the_cluster_of_the_program(tmp_path: Path) -> None:
    """The tables of a test's database are dropped, so another address of the same cluster is refused, too."""
    code = """
import sys
from django.conf import settings
import django
own, tests = sys.argv[1:]
settings.configure(DATABASES={"default": {"ENGINE": "bedrockish.django", "NAME": own, "TEST": {"NAME": tests}}})
django.setup()
from django.db import connection
connection.creation.create_test_db(verbosity=0)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    with Node() as one, Node() as other:
        with one.connect() as db:
            db.execute("CREATE TABLE precious(x)")

        def tests(own: str, name: str) -> str:
            program = [sys.executable, "-c", code, own, name]
            return subprocess.run(program, capture_output=True, text=True, timeout=60, env=environment).stderr

        url = f"bedrockish:///?host={one.path}-sock"
        assert "tests need a cluster of their own" in tests(url, str(one.path))
        assert "tests need a cluster of their own" in tests(url, f"{url}&timeout=7")
        with one.connect() as db:
            assert db.execute("SELECT count(*) FROM precious").value() == 0
        assert tests(url, str(other.path)) == ""
        assert tests("bedrockish://127.0.0.1:1", url) == ""


def test_django_on_a_file_needs_no_plugin_of_the_node() -> None:
    """Django's functions run in the program, in queries and in updates, inside of transactions and outside."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    with Node() as one:
        program = [sys.executable, "-m", "tests.django_site.features", str(one.path)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3_000:]


def test_bulk_inserts_ask_no_connection_for_its_limits() -> None:
    """Django 6 asks ``sqlite3`` for the limits, and only the nodes know theirs: each ``bulk_create`` would fail."""
    from bedrockish.django.base import DatabaseFeatures

    assert vars(DatabaseFeatures)["max_query_params"] == 999


def test_log_of_queries_sends_no_query() -> None:
    """Django quoted parameters by a query. After a node had died, that query failed and hid that the block can be
    retried.
    """
    from bedrockish.django.base import DatabaseOperations

    values = [1, -(2**63), None, "it's", "", b"\x01\xff", bytearray(b"a"), 1.5, 1e300, True, Decimal("1.50")]
    plain = sqlite3.connect(":memory:")
    kept = [str(value) if isinstance(value, Decimal) else value for value in values]
    wanted = plain.execute("SELECT " + ", ".join(["quote(?)"] * len(kept)), kept).fetchone()
    plain.close()
    nobody = cast(Any, None)  # in place of the connection, which is not used
    operations = DatabaseOperations(nobody)
    found = operations._quote_params_for_last_executed_query(values)
    assert [float(one) if "e" in one else one for one in found] == [
        float(one) if "e" in one else one for one in map(str, wanted)
    ]
    said = operations.last_executed_query(nobody, "UPDATE t SET a = %s WHERE b = %s", ("x'y", 2))
    assert said == "UPDATE t SET a = 'x''y' WHERE b = 2"
