"""Every interface for a user's SQL, each as a function that runs one text, or says why it cannot."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import bedrockish.dbapi
from bedrockish import connect
from bedrockish.errors import BedrockishError
from tests.forked import program
from tools.cluster import LocalCluster

WAIT_S = 60


class RefusedError(Exception):
    """Raised when an interface answers with an error, whose code and text it has."""


@dataclass(frozen=True)
class Caller:
    """A client that calls one node of a cluster."""

    cluster: LocalCluster
    node: int
    user: str
    password: str

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.cluster.nodes[self.node].port}"
        return f"bedrockish://{self.user}:{quote(self.password, safe='')}@{hosts}/?discover=no&connect_timeout={WAIT_S}"

    @property
    def login(self) -> str:
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def http_port(self) -> int:
        port = self.cluster.nodes[self.node].http_port
        assert port
        return port

    def post(self, path: str, body: object, scheme: str = "Basic") -> Any:
        """Send JSON, and return the JSON that comes back."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"{scheme} {self.login}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
                said = reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(error.read().decode()) from None
        return json.loads(said) if said.startswith(("{", "[")) and said.count("\n") < 2 else said


def client(caller: Caller, sql: str) -> None:
    with _typed(), connect(caller.url) as db:
        db.execute(sql)


def whole_transaction(caller: Caller, sql: str) -> None:
    with _typed(), connect(caller.url) as db:
        db.transact(["SELECT 1", sql])


def open_transaction(caller: Caller, sql: str) -> None:
    with _typed(), connect(caller.url) as db:
        db.execute("BEGIN")
        db.execute("SELECT 1")
        db.execute(sql)
        db.execute("COMMIT")


def dbapi(caller: Caller, sql: str) -> None:
    try:
        connection = bedrockish.dbapi.connect(caller.url)
        try:
            connection.execute(sql)
            connection.commit()
        finally:
            connection.close()
    except bedrockish.dbapi.Error as error:
        raise RefusedError(f"{getattr(error, 'code', '')} {error}") from None


def shell(caller: Caller, sql: str) -> None:
    done = program("sql", caller.url, sql, timeout=WAIT_S)
    assert "Traceback" not in done.stderr
    if done.returncode:
        raise RefusedError(done.stderr)


def http_execute(caller: Caller, sql: str) -> None:
    caller.post("/db/execute", [sql])


def http_transaction(caller: Caller, sql: str) -> None:
    caller.post("/db/transaction", [sql])


def libsql_pipeline(caller: Caller, sql: str) -> None:
    _libsql(caller.post("/v2/pipeline", {"requests": [{"type": "execute", "stmt": {"sql": sql}}]}, "Bearer"))


def libsql_alone(caller: Caller, sql: str) -> None:
    caller.post("/v1/execute", {"stmt": {"sql": sql}})


def libsql_batch(caller: Caller, sql: str) -> None:
    steps: list[dict[str, Any]] = [{"stmt": {"sql": one}} for one in ("BEGIN", sql, "COMMIT")]
    steps = [
        {**one, "condition": {"type": "ok", "step": place - 1}} if place else one for place, one in enumerate(steps)
    ]
    requests = [{"type": "batch", "batch": {"steps": steps}}, {"type": "close"}]  # closing ends the open transaction
    answer = caller.post("/v2/pipeline", {"requests": requests})
    _libsql(answer)
    for error in answer["results"][0]["response"]["result"]["step_errors"]:
        if error:
            raise RefusedError(str(error))


def _libsql(answer: Mapping[str, Any]) -> None:
    for one in answer["results"]:
        if one["type"] == "error":
            raise RefusedError(str(one["error"]))


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except BedrockishError as error:
        raise RefusedError(f"{error.code} {error.message}") from None


INTERFACES: Mapping[str, Callable[[Caller, str], None]] = {
    one.__name__: one
    for one in (
        client,
        whole_transaction,
        open_transaction,
        dbapi,
        shell,
        http_execute,
        http_transaction,
        libsql_pipeline,
        libsql_alone,
        libsql_batch,
    )
}
