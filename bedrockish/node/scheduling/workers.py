"""Background workers for long requests: threads with private snapshots, so that the loop serves all other requests.

The loop gives a request a few milliseconds. A request that needs more time is executed here: it gets a ``Workspace``
and a snapshot at the next moment at which the file has exactly the applied entries. Its access set is compared with all
commits since its snapshot. Without a conflict, the core continues with the result; otherwise the request is executed
again, on a newer snapshot, until its deadline.
"""

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import trio

from bedrockish.api.requests import STRICT, Answer, Request
from bedrockish.common.machine import start_thread
from bedrockish.core.coordinator.revalidation import lost
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Overtaken
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import LONG_TEXT, MANY_PARAMETERS
from bedrockish.engine.statements.clock_functions import Scope
from bedrockish.errors import BedrockishError, DamagedError, DeadlineError, UnavailableError
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.snapshots import Boundary

logger = logging.getLogger(__name__)

TEXTS_MAX = 1_000  # the most texts that are remembered because they take long
RUNS_KEPT = 5  # the number of last runs that are remembered of each text
WATCH_S = 0.25
WORKER = "worker"  # the name of the workers' threads
CLOCKS = 256  # values of the clock that a thread gets at a time
SWITCH_S = 0.0005  # how long a thread keeps Python's interpreter lock; by default ten times that
BULKY_BYTES = 1 << 20  # bytes of a value, above which binding it would block the loop
STUCK_S = 5.0  # seconds after which a stopped job that still runs, in a plugin's function, counts as stuck
LEAVE_S = 0.5  # how long a stopping node waits for its jobs to stop, in seconds

Action = Callable[[Workspace], Any]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job:
    """A single run of a request in a worker."""

    key: object  # the number of the request, or an object that no other job has
    request: Request
    action: Action
    clock: bool = False  # whether a majority has moved its clocks up, so that ``transaction_clock()`` can be called
    on_result: Callable[[Any], None] | None = None  # takes the result of a job that is not a client's request
    workspace: Workspace | None = None
    thread: threading.Thread | None = None
    stopped: float = 0.0  # seconds at which the job was stopped; 0 before that
    is_over: bool = False  # whether its thread has finished the work; guarded by ``lock``
    busy_s: float = 0.0  # the processor time of its thread, in seconds
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Clocks:
    """Values of the node's clock for a thread, which requests blocks of them from the loop."""

    def __init__(self, scope: Scope, token: trio.lowlevel.TrioToken) -> None:
        self._scope, self._token = scope, token
        self._next = self._end = 0
        self._given: SimpleQueue[int | Exception] = SimpleQueue()

    def next_value(self) -> int:
        """Return the next value.

        Raises:
            UnavailableError: the node is leaving.
        """
        if self._next == self._end:
            try:
                self._token.run_sync_soon(self._refill)
            except trio.RunFinishedError:
                raise leaving() from None
            given = self._given.get()
            if isinstance(given, Exception):
                raise given
            self._end = 1 + given
            self._next = self._end - CLOCKS
        self._next += 1
        return self._next - 1

    def _refill(self) -> None:
        """Reserve ``CLOCKS`` values, and pass the last of them to the thread; called in the loop."""
        try:
            self._given.put(self._scope.take_many(CLOCKS))
        except Exception as error:  # raised in the statement that needs the clock
            self._given.put(error)

    def close(self) -> None:
        """Pass on no more values, because the node is stopping, and its loop is going to wait for the thread."""
        self._given.put(leaving())


def leaving() -> UnavailableError:
    """Return the error for a request that arrives while the node stops."""
    return UnavailableError("the node is stopping; the request did not happen: send it to another node")


def cancelled(what: str) -> DeadlineError:
    """Return the error for work that was stopped because its caller no longer waits for the answer."""
    return DeadlineError(f"{what} was cancelled by its caller; it did not happen")


class WorkerPool:
    """Runs jobs in the background workers of one node.

    Why so large: A job is in the queue, among the running jobs and among the jobs with a waiter, and its end needs all
    three.
    """

    def __init__(
        self,
        engine: Engine,
        core: Node,  # knows the committed entries
        places: int,  # the number of *places*: at most this many jobs run at the same time; further jobs wait
        # Takes the outcome of a request: its transaction or answer, the event ``Overtaken``, the error, or None if the
        # journal has the answer.
        deliver: Callable[[int, Prepared | Overtaken | BedrockishError | None], None],
        faults: Faults,  # takes unexpected errors
        # Runs an action when waiting jobs can begin: when everything applied has just been committed to the file.
        boundary: Boundary,
    ) -> None:
        self._engine, self._core, self._places, self._deliver = engine, core, places, deliver
        self._faults, self._boundary = faults, boundary
        self._free: list[Workspace] = []
        self._jobs: dict[object, Job] = {}  # the jobs whose results are awaited
        self._queue: deque[Job] = deque()  # the jobs that wait for a place, because all are taken
        self._running: set[Job] = set()
        self._clocks: WeakSet[_Clocks] = WeakSet()  # the clocks of all threads
        self._is_closed = False
        self.requests: set[int] = set()  # the requests that were started here and are not answered yet
        # By the hash of a text, whether each of its last runs took long; only texts that took long at least once.
        self.long_texts: dict[int, deque[bool]] = {}
        self._switch_s = sys.getswitchinterval()
        self.counts: Counter[str] = Counter()

    # -- the interface for the event loop ----------------------------------------------------------------------------

    def expects(self, *texts: str) -> bool:
        """Return whether a worker should run these texts at once, without a first try in the loop.

        It should if a text is so long that compiling it would block the loop, or if a text took long in most of its
        last runs.
        """
        for text in texts:  # called for each request: any() of a generator takes three times as long
            if len(text) > LONG_TEXT:
                return True
        if not self.long_texts:
            return False
        known = map(self.long_texts.get, map(hash, texts))
        return any(2 * sum(times) > len(times) for times in known if times is not None)

    def took_long(self, sql: str) -> None:
        """Record that a text exceeded the loop's budget; after a single long run it still runs in the loop first."""
        self.counts["over_budget"] += 1
        if len(sql) > LONG_TEXT:
            return
        key = hash(sql)
        if key not in self.long_texts:
            if len(self.long_texts) >= TEXTS_MAX:
                del self.long_texts[next(iter(self.long_texts))]
            self.long_texts[key] = deque([False], maxlen=RUNS_KEPT)
        self.long_texts[key].append(True)

    def was_short(self, *texts: str) -> None:
        """Record that these texts were within the loop's budget; forget a text if all its last runs were."""
        for key in map(hash, texts):
            times = self.long_texts.get(key)
            if times is not None:
                times.append(False)
                if not any(times):
                    del self.long_texts[key]

    def start(self, request_id: int, request: Request, action: Action, *, clock: bool) -> None:
        """Run an action for a request as soon as a place is free."""
        self.requests.add(request_id)
        self._add(Job(request_id, request, action, clock))

    async def run(self, request: Request, action: Callable[[Workspace], T]) -> T:
        """Run an action that is not a request of the core, as soon as a place is free; return its result."""
        found: list[Any] = []
        over = trio.Event()

        def take(what: Any) -> None:
            found.append(what)
            over.set()

        job = Job(object(), request, action, on_result=take)
        self._add(job)
        try:
            await over.wait()
        except BaseException:
            self._jobs.pop(job.key, None)
            self._stop(job)
            raise
        if isinstance(found[0], BaseException):
            raise found[0]
        result: T = found[0]
        return result

    def scope(self, command: str, clock: int) -> Scope:
        """Return the values of the clock's functions for an open transaction's statement that runs in a worker."""
        scope = Scope(locks=self._engine.locks)
        scope.begin_in_worker(command, clock, self._new_clocks().next_value)
        return scope

    def _new_clocks(self) -> _Clocks:
        clocks = _Clocks(self._engine.scope, trio.lowlevel.current_trio_token())
        self._clocks.add(clocks)
        return clocks

    def _add(self, job: Job) -> None:
        self._jobs[job.key] = job
        self._queue.append(job)
        self.counts["worker_runs"] += 1
        self._fill_soon()

    async def watch(self) -> None:
        """Begin waiting jobs when running jobs count as stuck, until cancelled."""
        while True:
            await trio.sleep(WATCH_S)
            self._fill_soon()

    def end_job(self, request_id: int, answer: Answer | BedrockishError) -> Answer | BedrockishError:
        """Stop the job of a request that the core has answered; return the answer, after a timeout a more exact one."""
        self.requests.discard(request_id)
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._stop(job)
        if job is None or not isinstance(answer, DeadlineError):
            return answer
        waited = "was still waiting for a background worker" if job.workspace is None else "was still running"
        seconds = max(job.request.timeout_s, job.request.longest_s)
        return DeadlineError(f"command {job.request.command} {waited} after {seconds:g} s; it did not happen")

    def stop_read(self, command: str) -> None:
        """Stop the read of a caller that has gone; do nothing if it runs in no worker."""
        for job in [job for job in self._jobs.values() if job.on_result is None and job.request.command == command]:
            self._cancel(job)

    def stop_request(self, request_id: int) -> None:
        """Stop a request whose caller no longer waits; a request of the same command from another link goes on."""
        job = self._jobs.get(request_id)
        if job is not None:
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        self._stop(job)
        self._finish_job(job, cancelled(f"command {job.request.command}"))

    def describe(self) -> dict[str, int]:
        """Return the numbers of running, waiting and stuck jobs."""
        now = time.monotonic()
        stuck = sum(1 for job in self._running if job.stopped and now - job.stopped > STUCK_S)
        busy = len(self._running) - stuck
        return {"places": self._places, "running": busy, "waiting": len(self._queue), "stuck": stuck}

    def close(self) -> None:
        """Stop all jobs, because the node stops."""
        self._is_closed = True
        for job in [*self._jobs.values(), *self._running]:
            self._stop(job)
        for clocks in list(self._clocks):
            clocks.close()
        until = time.monotonic() + LEAVE_S  # for all jobs together
        for job in list(self._running):
            assert job.thread is not None
            job.thread.join(max(0.0, until - time.monotonic()))
        for workspace in self._free:
            workspace.close()
        self._free.clear()

    # -- places ----------------------------------------------------------------------------------------------------

    def _fill_soon(self) -> None:
        """Give places to waiting jobs, as soon as everything that was applied is committed to the file."""
        if self._queue:
            self._boundary.call_soon(self._fill)

    def _fill(self) -> None:
        """Give places to waiting jobs."""
        while self._queue and not self._is_closed:
            stuck = self.describe()["stuck"]
            if stuck >= 2 * self._places:
                error = UnavailableError(
                    f"this node runs {stuck} statements that cannot be interrupted; restart it, and shorten them"
                )
                for job in self._queue:
                    self._finish_job(job, error)
                self._queue.clear()
            if len(self._running) - stuck >= self._places or (self._running and not self._has_memory()):
                return
            job = self._queue.popleft()
            if not job.stopped:
                self._begin(job)

    def _has_memory(self) -> bool:
        """Return whether there is memory for the largest result of each running job and of one more job."""
        limits = self._engine.connector().limits
        each = 2 * limits.result_bytes  # a result is in memory twice: as rows, and encoded
        return limits.memory.taken + (len(self._running) + 1) * each <= limits.memory.max_bytes

    def _begin(self, job: Job) -> None:
        engine = self._engine
        workspace: Workspace | None = None
        if isinstance(job.key, int) and engine.journal.command_txid(job.request.command) is not None:
            # The command was also sent elsewhere and has happened while this job waited, so it need not run.
            del self._jobs[job.key]
            self._deliver(job.key, None)
            return
        try:
            engine.memory.check_large()  # a job in a worker may use much memory
            workspace = self._free.pop() if self._free else Workspace(engine.connector())
            workspace.take_snapshot(engine.flushed, engine.file_state())
        except Exception as error:  # a lack of room for a connection or a thread fails this job alone
            self._refuse(job, workspace, error)
            return
        job.workspace = workspace
        token = trio.lowlevel.current_trio_token()
        clocks = self._new_clocks()
        # The clock is taken now, so that it is later than the snapshot.
        workspace.scope.begin_in_worker(job.request.command, engine.scope.take() if job.clock else 0, clocks.next_value)
        job.thread = threading.Thread(target=self._run, args=(job, workspace, token), name=WORKER, daemon=True)
        self._running.add(job)
        try:
            start_thread(job.thread.start)
        except (RuntimeError, MemoryError) as error:  # the machine has no room for another thread
            self._running.discard(job)
            job.workspace = job.thread = None
            told = self._faults.caught("the start of a background worker", error)
            self._refuse(job, workspace, UnavailableError(told.message))  # another node may have room
            return
        self._set_switch_interval()

    def _refuse(self, job: Job, workspace: Workspace | None, error: Exception) -> None:
        if workspace is not None:
            workspace.close()
        self._finish_job(job, error)

    def _set_switch_interval(self) -> None:
        """Give the loop the interpreter more often while threads run, because they also gather rows in Python."""
        wanted = SWITCH_S if self._running else self._switch_s
        if sys.getswitchinterval() != wanted:
            sys.setswitchinterval(wanted)

    def _run(self, job: Job, workspace: Workspace, token: trio.lowlevel.TrioToken) -> None:
        found: Any
        began = time.thread_time()
        try:
            found = job.action(workspace)
        except BaseException as error:
            found = error if isinstance(error, DamagedError) else _without_traceback(error)
        job.busy_s = time.thread_time() - began
        with job.lock:
            job.is_over = True
        try:
            token.run_sync_soon(self._done, job, workspace, found)
        except trio.RunFinishedError:
            workspace.close()

    def _done(self, job: Job, workspace: Workspace, found: Any) -> None:
        if job not in self._running:
            return
        workspace.end()
        self._running.discard(job)
        self._set_switch_interval()
        # If the transaction ended during the run, its locks were released, but the statement may have locked more rows
        # since.
        if workspace.is_broken or job.stopped:
            self._engine.locks.release(job.request.command)
        if workspace.is_broken or self._is_closed:
            workspace.close()
        else:
            self._free.append(workspace)
        if isinstance(found, Prepared) and job.busy_s < 0.5 * self._budget_s:
            self.was_short(*job.request.texts)
        if self._jobs.get(job.key) is job:
            self._finish_job(job, found)
        self._fill_soon()

    @property
    def _budget_s(self) -> float:
        return self._engine.connector().limits.budget_s

    def _finish_job(self, job: Job, found: Any) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        if isinstance(found, Exception) and not isinstance(found, BedrockishError):
            found = self._faults.caught(f"command {job.request.command} in a background worker", found)
        if isinstance(found, DamagedError) or (
            isinstance(found, BaseException) and not isinstance(found, BedrockishError)
        ):
            self._boundary.fail(found)
        elif job.on_result is not None:
            job.on_result(found)
        else:
            self._certify(job, found, found.rests_on if isinstance(found, BedrockishError) else found)

    def _certify(self, job: Job, found: Prepared | BedrockishError, read: Prepared | None) -> None:
        """Deliver the result or the error of a request if it would be the same now; otherwise have it run again."""
        request_id = _request_name(job)
        if read is None or (read.readonly and job.request.read != STRICT):
            self._deliver(request_id, found)
            return
        error = lost(self._core.state, job.request.command, read)
        if error is None:
            # A transaction with a transaction clock keeps its base: all of its commits must be below that clock. A read
            # of the journal keeps its base, too: each later commit has added a row to the journal.
            stays = read.clock or (read.readonly and read.reads_system)
            moved = read if stays else replace(read, base=dict(self._engine.applied))
            if isinstance(found, BedrockishError):
                found.rests_on = moved
            self._deliver(request_id, found if isinstance(found, BedrockishError) else moved)
            return
        self.counts["worker_runs_overtaken"] += 1
        self._deliver(request_id, Overtaken(request_id, read))

    def _stop(self, job: Job) -> None:
        """Stop a job, without waiting for its end."""
        if job.stopped:
            return
        job.stopped = time.monotonic()
        if job.workspace is None:
            return
        error = DeadlineError(f"command {job.request.command} was stopped; it did not happen")
        with job.lock:
            if job.is_over:
                return
            job.workspace.stop(error)


def _without_traceback(error: BaseException) -> BaseException:
    """Return an error without its traceback, whose frames keep all rows that were read so far.

    An unexpected error keeps its traceback, for the log.
    """
    seen: BaseException | None = error if isinstance(error, BedrockishError) else None
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
    return error


def _request_name(job: Job) -> int:
    assert isinstance(job.key, int)
    return job.key


def any_at_work() -> bool:
    """Return whether a background worker of this process runs, such as one in a call that cannot be interrupted."""
    return any(thread.name == WORKER for thread in threading.enumerate())


def is_bulky(request: Request) -> bool:
    """Return whether a request has so large a value, or so many values, that writing them would block the loop.

    SQLite cannot be interrupted while it copies a value, and binding parameters cannot be interrupted either.
    """
    for statement in request.statements:
        params = statement.params or ()
        if len(params) > MANY_PARAMETERS:
            return True
        # The type is tested first: an isinstance against an abstract class costs more than all the rest.
        for value in params if type(params) is list or not isinstance(params, Mapping) else params.values():
            kind = type(value)
            if kind is not int and kind is not float and isinstance(value, bytes | str) and len(value) > BULKY_BYTES:
                return True
    return False
