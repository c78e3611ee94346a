"""One node or three that serve HTTP: real processes, with real sockets."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cluster.story import ready
from tools.cluster import LocalCluster, local_cluster


@dataclass(frozen=True)
class Reply:
    """A node's answer."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Asker:
    """Asks one node."""

    port: int
    cluster: LocalCluster

    def __call__(self, path: str, body: object = None, method: str | None = None, **headers: str) -> Reply:
        """Ask; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Reply(reply.status, reply.headers, reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def sql(self, *statements: object, to: str = "execute", **options: str) -> Reply:
        """Send statements."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return self(f"/db/{to}?{query}", list(statements))


@contextmanager
def node_with_limits(directory: Path, **limits: int) -> Iterator[Asker]:
    """Yield a single node with some limits of its own."""
    cluster = LocalCluster(directory, ("A",), {"limits": limits})
    cluster.add_http()
    cluster.write_files()
    cluster.nodes[0].start()
    try:
        trio.run(cluster.wait_ready, 0)
        assert cluster.nodes[0].http_port is not None
        yield Asker(cluster.nodes[0].http_port, cluster)
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Yield a single node."""
    with local_cluster(tmp_path_factory.mktemp("http") / "one", ("A",), http=True) as cluster:
        trio.run(ready, cluster)
        assert cluster.nodes[0].http_port is not None
        yield Asker(cluster.nodes[0].http_port, cluster)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes."""
    with local_cluster(tmp_path_factory.mktemp("http") / "three", http=True) as cluster:
        trio.run(ready, cluster)
        yield cluster
