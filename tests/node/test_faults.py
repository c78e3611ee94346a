"""A bug fails one request: the node goes on after an exception from any code, and reports it."""

import errno
import json
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio.testing import MockClock

from bedrockish import daemon
from bedrockish.api.json_forms import write_json
from bedrockish.api.requests import Answer, Request, Result, Statement, decode_results
from bedrockish.api.url import Address
from bedrockish.config.config import Config
from bedrockish.core.protocol.effects import Keep
from bedrockish.core.protocol.health import DAMAGED_TABLES, Health
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.errors import lost_file
from bedrockish.errors import (
    BedrockishError,
    ConfigError,
    DamagedError,
    InternalError,
    MemoryFullError,
    NoRoomError,
    OutcomeUnknownError,
    UnavailableError,
)
from bedrockish.http import serving
from bedrockish.http.libsql.pipeline import Pipelines
from bedrockish.http.libsql.session import DeclaredTypes, LibsqlSession
from bedrockish.http.messages import HttpRequest
from bedrockish.http.request_memory import RequestMemory, UnfinishedBodies
from bedrockish.node import published
from bedrockish.node.admin.watching import WriteCheck, watch_disk
from bedrockish.node.repair.healer import RestartError, note_damage
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.workers import STUCK_S, Job
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_net.errors import ListenError
from bedrockish_net.mesh import Mesh
from tests.node.test_durability import open_runtime
from tests.node.test_durability import request as sql_request

HERE = Address("127.0.0.1", 7000)


def bug(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("one of ours")


def no_room(*_: object) -> None:
    raise NoRoomError("the disk is full")


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def failed_read(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


async def until(test: Callable[[], object]) -> None:
    while not test():  # noqa: ASYNC110 (no event exists)
        await trio.sleep(0.01)


def full(*_: object) -> None:
    raise apsw.FullError("database or disk is full")


def never(damage: DamagedError) -> None:
    raise AssertionError(damage)


@pytest.fixture
def runtime(tmp_path: Path) -> Any:
    path = tmp_path / "a.db"
    engine = Engine.open(path, founding=Founding("A", Membership(0, {"A": Member("A", str(HERE))}), "store"))
    yield Runtime(engine, Config(node="A", database=str(path), listen=HERE, peers={"A": HERE}))
    engine.close()


async def ask(runtime: Runtime, sql: str, command: str) -> Answer | BedrockishError:
    try:
        return await runtime.submit(Request(command, (Statement(sql),), timeout_s=5))
    except BedrockishError as error:
        return error


async def test_request_that_hits_a_bug_gets_an_internal_error_and_the_next_is_answered(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await ask(runtime, "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            with monkeypatch.context() as patch:
                patch.setattr(runtime.engine, "execute", bug)
                for number in range(3):
                    error = await ask(runtime, "INSERT INTO t VALUES (1, 1)", f"c{number}")
                    assert isinstance(error, InternalError)
            assert isinstance(await ask(runtime, "INSERT INTO t VALUES (1, 1)", "c0"), Answer)
            assert runtime.counts["internal_errors"] == 3
            assert runtime.faults.last.split()[-1].strip(")") in caplog.text
            assert caplog.text.count("Traceback") == 1, "the same line of the program is shown once"
            nursery.cancel_scope.cancel()


async def test_bug_in_a_libsql_request_keeps_earlier_answers_and_ends_the_stream(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in one statement is the error of that statement; the client gets the results of the statements before."""
    asked: dict[str, Any] = {}

    async def body(_: HttpRequest) -> bytes:
        return write_json(asked)

    async def no_more() -> None:
        raise AssertionError("the body is whole")

    def execute(sql: str) -> dict[str, Any]:
        return {"type": "execute", "stmt": {"sql": sql}}

    def batch(*sqls: str) -> dict[str, Any]:
        return {"steps": [{"stmt": {"sql": sql}} for sql in sqls]}

    pipelines = Pipelines(runtime, DeclaredTypes(runtime, lambda: runtime.engine.schema_version), body)

    async def call(path: str) -> Any:
        request = HttpRequest("POST", path.encode(), {}, "127.0.0.1", no_more)
        request.memory = RequestMemory(runtime.engine.memory, 1 << 20, UnfinishedBodies(runtime.engine.memory))
        reply = await pipelines.routes()["POST", path](request)
        if isinstance(reply.body, bytes):
            return json.loads(reply.body)
        return [json.loads(line) async for line in reply.body]

    insert, bad = "INSERT INTO t(x) VALUES (1)", "DELETE FROM t"
    real = LibsqlSession.execute

    async def sometimes(self: LibsqlSession, statement: Statement, *, is_last: bool = False) -> Result:
        return bug() if statement.sql == bad else await real(self, statement, is_last=is_last)

    monkeypatch.setattr(LibsqlSession, "execute", sometimes)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await ask(runtime, "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            asked["requests"] = [execute("BEGIN"), execute(insert), execute(bad), execute(insert), {"type": "close"}]
            told = await call("/v3/pipeline")
            assert [one["type"] for one in told["results"]] == ["ok", "ok", "error", "error", "ok"]
            assert told["results"][2]["error"]["code"] == "OUTCOME_UNKNOWN"
            assert "ZeroDivisionError" in told["results"][2]["error"]["message"]
            assert told["baton"] is None
            asked["requests"] = [{"type": "batch", "batch": batch(insert, bad, insert)}]
            result = (await call("/v3/pipeline"))["results"][0]["response"]["result"]
            assert [one is not None for one in result["step_results"]] == [True, False, False]
            assert [one is not None for one in result["step_errors"]] == [False, True, False]
            asked["batch"] = batch(insert, bad, insert)
            kinds = [line.get("type") for line in await call("/v3/cursor")]
            assert kinds == [None, "step_begin", "step_end", "step_error"]
            count = await ask(runtime, "SELECT count(*) FROM t", "count")
            assert isinstance(count, Answer)
            assert decode_results(count.results)[0].rows == [(2,)], "the open transaction was rolled back"
            nursery.cancel_scope.cancel()


async def test_bug_in_a_background_worker_fails_one_request(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await ask(runtime, "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            for _ in range(5):
                runtime.workers.took_long("SELECT * FROM t")
            with monkeypatch.context() as patch:
                patch.setattr("bedrockish.engine.execution.workspace.Workspace.execute", bug)
                assert isinstance(await ask(runtime, "SELECT * FROM t", "c1"), InternalError)
            with monkeypatch.context() as patch:
                patch.setattr("threading.Thread.start", no_thread)
                error = await ask(runtime, "SELECT * FROM t", "c2")
                assert isinstance(error, UnavailableError)
                assert "ulimit -u" in error.message
            assert runtime.faults.describe()["limit_errors_recent"] == 1, "the trouble machine_limit names it"
            assert isinstance(await ask(runtime, "SELECT * FROM t", "c3"), Answer)
            assert runtime.workers.describe()["running"] == 0
            nursery.cancel_scope.cancel()


async def test_failing_callback_of_a_caller_does_not_stop_other_answers(runtime: Runtime) -> None:
    told: list[object] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            runtime.begin(Request("a", (Statement("SELECT 1"),), timeout_s=5), bug)
            runtime.begin(Request("b", (Statement("SELECT 1"),), timeout_s=5), told.append)
            assert isinstance(await ask(runtime, "SELECT 1", "c"), Answer)
            nursery.cancel_scope.cancel()
    assert [type(one) for one in told] == [Answer]


async def test_failed_background_task_restarts_after_pauses_that_double(autojump_clock: MockClock) -> None:
    faults, began = Faults(Counter(), never), list[float]()

    async def task() -> None:
        began.append(trio.current_time())
        if len(began) < 5:
            bug()

    await faults.keep_running("a task", task)
    assert [later - earlier for earlier, later in pairwise(began)] == [1, 2, 4, 8]
    assert faults.describe()["internal_errors_recent"] == 4


@pytest.mark.parametrize(
    ("error", "text", "details"),
    [
        (DamagedError("the disk failed"), "the disk failed", {}),
        (NoRoomError("the disk is full"), "the disk is full", {}),
        (apsw.CorruptError("malformed"), "a page of the database file is damaged", {"table": "", "page": "malformed"}),
        (apsw.NotADBError("not a"), "a page of the database file is damaged", {"table": "", "page": "not a"}),
    ],
)
async def test_damage_in_any_task_stops_the_node(error: Exception, text: str, details: dict[str, str]) -> None:
    stopped: list[DamagedError] = []
    counts = Counter[str]()
    faults, began = Faults(counts, stopped.append), 0

    async def damaged() -> None:
        nonlocal began
        began += 1
        raise ExceptionGroup("from a nursery", [ZeroDivisionError(), error])

    answer = faults.caught("anything", error)
    assert isinstance(answer, UnavailableError)
    assert text in answer.message
    await faults.keep_running("a task", damaged)
    assert began == 1, "what has met damage is not begun again"
    with pytest.raises(UnavailableError):
        await faults.stopping("anything", damaged())
    assert [one.details for one in stopped] == [details] * 3
    assert all(text in one.message for one in stopped)
    assert not counts, "it is no bug"


async def test_full_disk_in_an_order_of_an_operator_ends_the_node(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the node's next batch would report a failed file and end the process, instead of waiting for room."""
    answers: list[BedrockishError] = []
    with trio.fail_after(60), pytest.RaisesGroup(NoRoomError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await ask(runtime, "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            monkeypatch.setattr("bedrockish.engine.storage.system_tables.set_meta", full)
            try:
                await runtime.upkeep.handle({"do": "clock", "set": "off"})
            except BedrockishError as error:
                answers.append(runtime.faults.caught("an order", error))
            await trio.sleep_forever()
    assert [type(one) for one in answers] == [UnavailableError]


@pytest.mark.parametrize(
    ("fault", "told", "untold"),
    [
        (bug, "ZeroDivisionError", "ulimit"),
        (no_thread, "TasksMax); the node restarts", "please report"),
        (failed_read, "the disk failed (Input/output error): check it; the node restarts", "please report"),
    ],
)
async def test_node_restarts_from_its_file_after_a_fault_in_the_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[..., object],
    told: str,
    untold: str,
) -> None:
    caplog.set_level(logging.INFO)
    runs: list[Runtime] = []
    config = Config(
        node="A", database=str(tmp_path / "a.db"), listen=Address("127.0.0.1", 0), peers={"A": Address("127.0.0.1", 0)}
    )
    monkeypatch.setattr(daemon, "PAUSE_S_MIN", 0.01)
    init = Runtime.__init__

    def note(self: Runtime, *args: Any) -> None:
        init(self, *args)
        runs.append(self)

    monkeypatch.setattr(Runtime, "__init__", note)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, config)
            await until(lambda: runs and runs[0].output.mesh is not None)
            await ask(runs[0], "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            monkeypatch.setattr(runs[0].core, "step", fault)
            error = await ask(runs[0], "INSERT INTO t VALUES (1, 1)", "lost")
            assert isinstance(error, OutcomeUnknownError), "nobody may say that it did not happen"
            await until(lambda: len(runs) > 1 and runs[1].output.mesh is not None)
            assert isinstance(await ask(runs[1], "INSERT INTO t VALUES (1, 1)", "lost"), Answer)
            assert runs[1].counts["restarts"] == 1
            nursery.cancel_scope.cancel()
    assert "restarts from its file" in caplog.text
    assert told in caplog.text
    assert untold not in caplog.text


async def test_node_with_a_full_disk_serves_again_after_a_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Runtime] = []
    waited: list[str] = []
    here = Address("127.0.0.1", 0)
    config = Config(node="A", database=str(tmp_path / "a.db"), listen=here, peers={"A": here})
    init = Runtime.__init__

    def note(self: Runtime, *args: Any) -> None:
        init(self, *args)
        runs.append(self)

    async def wait(room: WriteCheck) -> None:
        waited.append(room.why)

    monkeypatch.setattr(Runtime, "__init__", note)
    monkeypatch.setattr(WriteCheck, "wait", wait)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, config)
            await until(lambda: runs and runs[0].output.mesh is not None)
            await ask(runs[0], "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            runs[0].engine._db.pragma("max_page_count", runs[0].engine._db.pragma("page_count") + 2)
            big = await ask(runs[0], "INSERT INTO t VALUES (1, zeroblob(100000))", "big")
            assert isinstance(big, UnavailableError), "what a statement needs and cannot have is its own trouble"
            monkeypatch.setattr(runs[0].engine, "set_meta", no_room)
            runs[0].core.state.outbox.emit(Keep("clock_ceiling", 1))
            await ask(runs[0], "SELECT 1", "read")
            await until(lambda: len(runs) > 1 and runs[1].output.mesh is not None)
            assert isinstance(await ask(runs[1], "INSERT INTO t VALUES (1, 1)", "big"), Answer)
            nursery.cancel_scope.cancel()
    assert len(waited) == 1
    assert waited[0].startswith(config.database)


DISK_FAILURES = (
    apsw.IOError("disk I/O error"),
    OSError(errno.EIO, "Input/output error"),
    ExceptionGroup("both", [ValueError(), ExceptionGroup("inner", [apsw.IOError("disk I/O error")])]),
)


@pytest.mark.parametrize("error", DISK_FAILURES)
async def test_disk_failure_in_a_thread_is_reported_as_disk_failure(
    error: Exception, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """The failure is not a bug: decided commits do not depend on it, and another node can answer."""
    faults = Faults(Counter(), never)
    told = faults.caught("a backup", error)
    assert isinstance(told, UnavailableError)
    assert "check the disk of this one" in told.message
    found = faults.describe()
    assert (found["disk_errors_recent"], found["internal_errors_recent"]) == (1, 0)
    assert found["disk_error_last"].endswith("error at a backup")
    assert "Traceback" not in caplog.text
    runs: list[float] = []

    async def task() -> None:
        runs.append(trio.current_time())
        if len(runs) < 3:
            raise error

    await faults.keep_running("comparing tables", task)
    assert len(runs) == 3, "the task begins again, as after a bug"


@pytest.mark.parametrize(
    ("why_not", "said"),
    [
        (DamagedError("a table is damaged"), "the indexes cannot be rebuilt: a table is damaged"),
        (
            UnavailableError("there is no room"),
            "may be rebuilt when this is corrected and the node is started: there is",
        ),
    ],
)
async def test_failed_start_reports_whether_rebuilt_indexes_may_help(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why_not: BedrockishError,
    said: str,
) -> None:
    """If the disk is full, the log says that the indexes may be rebuilt at a later start."""
    served = Served(tmp_path, monkeypatch)

    def fail(*_: object, **__: object) -> Any:
        raise lost_file("a.db", apsw.CorruptError("malformed"))

    def rebuild(*_: object) -> None:
        raise why_not

    monkeypatch.setattr(Engine, "open", fail)
    monkeypatch.setattr(daemon, "rebuild_in_place", rebuild)
    with trio.fail_after(60), pytest.raises(DamagedError, match="cannot begin without"):
        await daemon.serve(served.config)
    assert said in caplog.text


async def test_damage_is_kept_while_the_file_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node waits for its disk in the same process, because a new one would begin as a sound node."""
    served = Served(tmp_path, monkeypatch)
    monkeypatch.setattr(daemon, "PAUSE_S_MAX", 0.02)
    tries = 0

    def fail(*_: object, **__: object) -> Any:
        nonlocal tries
        tries += 1
        raise ConfigError("a.db cannot be opened for writing: disk I/O error")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, served.config)
            first = await served.run_of(0)
            with monkeypatch.context() as patch:
                patch.setattr(Engine, "open", fail)
                first.stop(DamagedError("row 7 is not what it was", table="t"))
                await until(lambda: tries == 3)
            await until(lambda: len(served.runs) == 2)
            alarms = served.runs[1].core.state.health.alarms
            nursery.cancel_scope.cancel()
    assert DAMAGED_TABLES in alarms
    assert "the node cannot restart yet: a.db cannot be opened" in caplog.text


class Served:
    """The runtimes that ``daemon.serve`` runs one after the other."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: Address | None = None) -> None:
        here = Address("127.0.0.1", 0)
        self.config = Config(node="A", database=str(tmp_path / "a.db"), listen=here, peers={"A": here}, http=http)
        self.runs: list[Runtime] = []
        init = Runtime.__init__

        def note(runtime: Runtime, *args: Any) -> None:
            init(runtime, *args)
            self.runs.append(runtime)

        monkeypatch.setattr(Runtime, "__init__", note)

    async def run_of(self, number: int) -> Runtime:
        """Return one of them as soon as it serves."""
        await until(lambda: len(self.runs) > number and self.runs[number].output.mesh is not None)
        await self.runs[number].durable()
        return self.runs[number]


async def test_damage_found_with_a_full_disk_is_recorded_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the node would serve its damaged tables as a sound one."""
    served = Served(tmp_path, monkeypatch)

    async def wait(_room: WriteCheck) -> None:
        waited.append(len(served.runs))

    waited: list[int] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, served.config)
            first = await served.run_of(0)
            with monkeypatch.context() as patch:
                patch.setattr(WriteCheck, "wait", wait)
                notes = iter([no_room])
                patch.setattr(daemon, "note_damage", lambda *given: next(notes, note_damage)(*given))
                first.stop(DamagedError("row 7 is not what it was", table="t"))
                await until(lambda: len(waited) == 1)
                await until(lambda: len(served.runs) == 2)
                alarms = served.runs[1].core.state.health.alarms
            nursery.cancel_scope.cancel()
    assert waited == [1]
    assert DAMAGED_TABLES in alarms


@pytest.mark.parametrize("what", ["http", "listen"])
async def test_node_waits_for_an_address_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Otherwise a node restarted after a failure could find its old address in use, and end for good."""
    served = Served(tmp_path, monkeypatch, Address("127.0.0.1", 0))
    monkeypatch.setattr(daemon, "PAUSE_S_MIN", 0.01)
    monkeypatch.setattr(daemon, "PAUSE_S_MAX", 0.02)
    tries, sockets = 0, []

    def open_socket(database: str) -> socket.socket | None:
        sockets.append(published.open_socket(database))
        return sockets[-1]

    monkeypatch.setattr(daemon, "open_socket", open_socket)

    async def taken(*_arguments: object) -> Any:
        nonlocal tries
        tries += 1
        raise ConfigError("http: it cannot be used") if what == "http" else ListenError("it cannot be listened on")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, served.config)
            first = await served.run_of(0)
            with monkeypatch.context() as patch:
                if what == "http":
                    patch.setattr(serving, "listen", taken)
                else:
                    patch.setattr(Mesh, "_listen", taken)
                first.stop(ZeroDivisionError("one of ours"))
                await until(lambda: tries == 3)
            await until(lambda: served.runs[-1].output.mesh is not None and served.runs[-1]._nursery is not None)
            nursery.cancel_scope.cancel()
    assert caplog.text.count("the node cannot restart yet: ") == 3
    assert len(sockets) == 5
    assert all(one is not None and one.fileno() == -1 for one in sockets), "a socket is still open"


async def test_node_stopped_at_its_restart_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)
    leave = Runtime.leave
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, served.config)
            first = await served.run_of(0)

            def leave_and_be_ended(runtime: Runtime) -> None:
                leave(runtime)
                nursery.cancel_scope.cancel()

            monkeypatch.setattr(Runtime, "leave", leave_and_be_ended)
            first.stop(RestartError("an operator has decided"))
    assert len(served.runs) == 1


async def test_a_node_only_reads_while_its_disk_is_nearly_full(autojump_clock: MockClock) -> None:
    health, room = Health(), {"free_bytes": 50 << 30, "total_bytes": 100 << 30}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(watch_disk, "a.db", health, lambda: None, lambda _: dict(room)))
        for free_mib, writes in ((5_000, True), (200, False), (300, False), (500, True)):
            room["free_bytes"] = free_mib << 20
            await trio.sleep(5)
            assert health.writes is writes, free_mib
            assert health.reads
            assert health.applies
        nursery.cancel_scope.cancel()


async def test_new_requests_are_refused_while_memory_is_full(runtime: Runtime) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await ask(runtime, "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create")
            runtime.engine.memory.max_bytes = 1
            error = await ask(runtime, "SELECT 1", "c1")
            assert isinstance(error, MemoryFullError)
            assert error.retry
            assert [one["code"] for one in runtime.status()["troubles"]] == ["memory_full"]
            runtime.engine.memory.max_bytes = 1 << 40
            assert isinstance(await ask(runtime, "SELECT 1", "c1"), Answer)
            nursery.cancel_scope.cancel()


def test_text_is_long_if_the_median_of_its_times_is(runtime: Runtime) -> None:
    workers, text = runtime.workers, "SELECT 1"
    workers.took_long(text)
    assert not workers.expects(text), "one bad day is no rule"
    workers.took_long(text)
    assert workers.expects("SELECT 2", text)
    workers.was_short(text)
    workers.was_short(text)
    assert not workers.expects(text)
    for _ in range(3):
        workers.was_short(text)
    assert not workers.long_texts, "what is never long is forgotten"


def test_long_texts_are_remembered_without_their_characters(runtime: Runtime) -> None:
    text = "SELECT '" + "x" * 10_000 + "'"
    before = sys.getrefcount(text)
    for _ in range(2):
        runtime.workers.took_long(text)
    assert runtime.workers.expects(text)
    assert sys.getrefcount(text) == before


async def test_waiting_command_gets_the_place_of_a_stuck_one(runtime: Runtime) -> None:
    """After ``STUCK_S`` a stuck command loses its place, even if no other event wakes the loop then."""
    workers = runtime.workers
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            for _ in range(2):
                workers.took_long("SELECT 1")
            workers._places = 1
            stuck = Job("stuck", Request("c0", ()), lambda _: None, stopped=time.monotonic())
            workers._running.add(stuck)
            found: list[Answer | BedrockishError] = []
            runtime.begin(Request("c1", (Statement("SELECT 1"),), timeout_s=10), found.append)
            while not workers.describe()["waiting"]:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
            assert workers.requests
            stuck.stopped -= 2 * STUCK_S
            while not found:  # noqa: ASYNC110
                await trio.sleep(0.001)
            assert isinstance(found[0], Answer)
            workers._running.discard(stuck)
            nursery.cancel_scope.cancel()


async def test_clock_query_in_a_worker_does_not_block_shutdown(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a shutdown the loop waits for the worker's thread, which may wait for the loop."""
    sql = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(cluster_clock()) FROM c"
    monkeypatch.setattr("bedrockish.node.scheduling.workers.STUCK_S", 1.0)
    told: list[Answer | BedrockishError] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            for _ in range(2):
                runtime.workers.took_long(sql)
            runtime.begin(Request("asks", (Statement(sql),), timeout_s=20), told.append)
            await until(lambda: runtime.workers._running)
            clock = runtime.core.state.clock
            before = clock.value
            await until(lambda: clock.value > before + 10_000)  # it is given blocks of them, one after the other
            (job,) = runtime.workers._running
            nursery.cancel_scope.cancel()
    runtime.leave()
    assert job.thread is not None
    assert not job.thread.is_alive()
    assert [type(one) for one in told] == [UnavailableError]


async def test_node_stopped_while_programs_read_leaves_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections of worker threads are closed after the node has left; an open one would keep the log."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    sql = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(sql_request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        for _ in range(2):
            runtime.workers.took_long(sql)
        runtime.begin(Request("long", (Statement(sql),), timeout_s=20), lambda _: None)
        await until(lambda: runtime.workers._running)
        snapshot, _ = await runtime.transactions.snapshots.take()
        assert (tmp_path / "a.db-wal").exists()
        nursery.cancel_scope.cancel()
    runtime.leave()
    runtime.transactions.snapshots.give_back(snapshot)
    await until(lambda: not runtime.workers._running)
    engine.close()
    assert not (tmp_path / "a.db-wal").exists()


async def test_a_broken_workspace_leaves_no_row_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace's request may have failed right before it released the lock itself."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(sql_request("CREATE TABLE jobs(id INTEGER PRIMARY KEY)", "create"))
        nursery.cancel_scope.cancel()
    asked = Request("stopped", ())
    assert engine.locks.lock("stopped", None, "jobs", (1,))
    job = Job(1, asked, lambda _workspace: None)
    workspace = Workspace(engine.connector())
    workspace.is_broken = True
    runtime.workers._running.add(job)
    runtime.workers._done(job, workspace, None)
    assert len(engine.locks) == 0
    engine.close()
