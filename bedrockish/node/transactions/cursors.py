"""The streamed results that are open at this node: their readers, their time limits and their ends.

The name of a stream is the id of its command. It belongs to one client's link and ends with the link. It reads on its
own snapshot, in helper threads, and only when its client asks for a batch: a client that does not read costs only a
connection. Its time is limited, because the write-ahead log cannot start over while the snapshot is open.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from bedrockish.access_sets.readset import ReadPlan
from bedrockish.api.requests import NOTHING, SESSION, STRICT, Answer, Request, Result, Token, encode_results
from bedrockish.api.wire import FETCH, STREAM
from bedrockish.config.config import Bounds
from bedrockish.core.coordinator.request import lagging
from bedrockish.core.node import Node
from bedrockish.core.protocol.records import Prepared, only_read
from bedrockish.engine.execution.cursor import Batches, access_set_of, compile_read
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.snapshot import Snapshot
from bedrockish.engine.sqlite.errors import is_in_the_text
from bedrockish.engine.statements.compiled import Compiled
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    DamagedError,
    DeadlineError,
    SqlError,
    UnavailableError,
    UsageError,
)
from bedrockish.node.scheduling.snapshots import Boundary, Snapshots
from bedrockish.node.scheduling.workers import WorkerPool
from bedrockish.node.transactions.callers import RULE, caller_of, has_room
from bedrockish.node.transactions.ended import EndedErrors
from bedrockish.node.transactions.steps import Submit
from bedrockish.node.transactions.visibility import catch_up

logger = logging.getLogger(__name__)

THREADS = 4  # the most batches that are read at the same time


@dataclass(slots=True, eq=False)
class Stream:
    """A streamed result, with the snapshot that it reads."""

    name: str  # the id of its command
    owner: object  # the link, or another object, to which the stream belongs
    caller: str  # the user or the address to whose share the stream counts
    columns: tuple[str, ...]  # the names of its columns
    token: Token  # the state that the stream shows
    snapshot: Snapshot  # the snapshot that it reads
    batches: Batches  # its rows
    since: float  # when the stream began, in seconds
    touched: float  # when a batch was last taken, in seconds
    rows: int = 0  # the number of rows that were taken
    is_busy: bool = False
    error: BedrockishError | None = None  # why the stream has ended; None while it is open
    turn: trio.Lock = field(default_factory=trio.Lock)


class Streams:
    """Opens, reads and ends the streams of one node's clients."""

    def __init__(
        self,
        interactive: Interactive,  # compiles statements, and has the connections that read
        core: Node,
        submit: Submit,  # runs a read to its end
        snapshots: Snapshots,  # takes snapshots of the applied entries
        boundary: Boundary,
        bounds: Bounds,  # the limits of the number and the time of streams
        workers: WorkerPool,  # compile long texts
    ) -> None:
        self._interactive, self._core, self._submit, self._snapshots = interactive, core, submit, snapshots
        self._boundary, self._bounds, self._workers = boundary, bounds, workers
        self._open: dict[str, Stream] = {}
        self._opening: dict[str, tuple[object, str]] = {}  # name -> owner and caller
        self._ended = EndedErrors()
        self._threads = trio.CapacityLimiter(THREADS)

    def __len__(self) -> int:
        return len(self._open)

    def is_used(self, since_s: float) -> bool:
        """Return whether a batch of a stream is being read, or was read after ``since_s``."""
        return any(one.is_busy or one.touched > since_s for one in self._open.values())

    async def handle(self, owner: object, op: str, request: Request) -> Answer:
        """Do one operation of a client: ``stream``, ``fetch`` or ``close``.

        Raises:
            BedrockishError: the error after which the stream is over.
        """
        if op == STREAM:
            stream = await self.open(owner, request)
            return Answer(encode_results([Result(stream.columns, [])]), stream.token, more=True)
        if op == FETCH:
            rows, more = await self.fetch(self._find(owner, request.command))
            return Answer(rows, Token(), more=more)
        if self._opener(request.command) is owner:
            del self._opening[request.command]
        stream_or_none = self._open.get(request.command)
        if stream_or_none is not None and stream_or_none.owner is owner:
            self.end(stream_or_none, UsageError("the stream was closed"))
        return Answer(NOTHING, Token())

    async def open(self, owner: object, request: Request) -> Stream:
        """Open a stream, and return it.

        Raises:
            UsageError: the request is not a single statement that reads.
            UnavailableError: the node has no room for another stream, or lacks entries that the client has seen.
        """
        name = request.command
        if len(request.statements) != 1:
            raise UsageError("a stream is the result of one statement; send one")
        earlier = self._open.get(name)
        if self._opener(name) is owner or (earlier is not None and earlier.owner is owner):
            raise UsageError(f"a stream {name} is open already; give each its own id")
        if earlier is not None:  # its client has lost the answer, and asks again on another link
            self.end(earlier, UnavailableError("the stream was opened again"))
        caller, most = caller_of(owner, request.user), self._bounds.streams_max
        callers = [*(one.caller for one in self._open.values()), *(by for _, by in self._opening.values())]
        if not has_room(most, callers, caller):
            raise UnavailableError(
                f"node {self._core.state.me} has {len(callers)} open streams; its limit is {most} (streams_max), of "
                f"which {RULE}: read some to their end, or try again"
            )
        self._opening[name] = owner, caller
        try:
            stream = await self._begin(owner, caller, request)
        except BaseException:
            if self._opener(name) is owner:
                del self._opening[name]
            raise
        if self._opener(name) is not owner:  # the stream was closed or reopened in ``_begin``, or its client has gone
            self._release(stream)
            raise UsageError("the stream was closed")
        del self._opening[name]
        self._open[name] = stream
        self._ended.forget(name)
        return stream

    def _opener(self, name: str) -> object:
        return self._opening[name][0] if name in self._opening else None

    async def _begin(self, owner: object, caller: str, request: Request) -> Stream:
        interactive, engine = self._interactive, self._interactive.engine
        caught_up = replace(request, read=SESSION, statements=())
        await self._submit(caught_up, lambda: only_read(engine.applied, engine.schema_version))
        is_caught_up = request.read != STRICT
        while True:
            version = engine.schema_version
            piece, params, plan = await self._compile(request)
            if piece.reads_system and not is_caught_up:
                await catch_up(self._submit, engine, request)
                is_caught_up = True
            snapshot, base = await self._snapshots.take()
            try:
                await self._boundary.wait_for_writer()
                if version == engine.schema_version:
                    if request.read != STRICT:
                        break
                    keys = access_set_of(interactive.parts.executor, plan, params, snapshot)
                    if await self._is_current(request, only_read(base, version, keys)):
                        break
            except BaseException:
                self._snapshots.give_back(snapshot)
                raise
            self._snapshots.give_back(snapshot)
        state, now = self._core.state, time.monotonic()
        token = Token(base, state.read_clock())
        batches = Batches(snapshot, piece, params, plan.lengths, by_column=request.by_column)
        return Stream(request.command, owner, caller, piece.columns, token, snapshot, batches, now, now)

    async def _is_current(self, request: Request, read: Prepared) -> bool:
        """Return whether a strict read is current: a majority knows no newer commit that conflicts with it.

        The question is about the snapshot that was taken. A snapshot taken after the question could have a commit and
        lack an older one.
        """
        try:
            await self._submit(replace(request, statements=()), lambda: read, once=True)
        except ConflictError:
            return False
        return True

    async def _compile(self, request: Request) -> tuple[Compiled, tuple[Any, ...], ReadPlan]:
        """Compile the statement; raise its error only if the schema is as current as the level of the read requires."""
        executor, engine = self._interactive.parts.executor, self._interactive.engine
        statement, user = request.statements[0], request.user
        while True:
            # The guard of the connection must see only the statements of this text, and not those of a thread.
            await self._boundary.wait_for_writer()
            try:
                if executor.texts.is_long(statement):
                    return await self._workers.run(request, lambda workspace: workspace.compile_read(statement, user))
                return compile_read(executor, statement, user)
            except SqlError as error:
                if is_in_the_text(error):
                    raise
                read = only_read(engine.applied, engine.schema_version)
                if request.read != STRICT:
                    raise lagging(error) if self._core.read_checks.may_lag(read) else error from None
                if await self._is_current(request, read):
                    raise

    def _find(self, owner: object, name: str) -> Stream:
        stream = self._open.get(name)
        if stream is not None and stream.owner is owner:
            return stream
        error = self._ended.find(name)
        if error is not None:
            raise error
        raise UnavailableError(f"node {self._core.state.me} has no open stream {name}")

    async def fetch(self, stream: Stream) -> tuple[bytes, bool]:
        """Return the next rows, as an encoded result, and whether there may be more; if not, the stream ends.

        Raises:
            BedrockishError: the reason why the stream is over.
        """
        async with stream.turn:
            if stream.error is not None:
                raise type(stream.error)(stream.error.message, **stream.error.details)
            stream.is_busy = True
            try:
                encoded, count, more = await trio.to_thread.run_sync(stream.batches.next_batch, limiter=self._threads)
            except BedrockishError as error:
                stream.is_busy = False
                if isinstance(error, DamagedError):
                    self._boundary.fail(error)
                if stream.error is None:
                    self.end(stream, error)
                else:
                    self._release(stream)
                raise stream.error or error from error
            except BaseException:
                stream.is_busy = False
                self.end(stream, UnavailableError("the client's call was cancelled"))
                raise
            stream.is_busy = False
            stream.touched = time.monotonic()
            if stream.error is not None:  # the stream was ended while the thread had the connection
                self._release(stream)
                raise stream.error
            stream.rows += count
            if not more:
                self.end(stream, UsageError("the stream is over"))
            return encoded, more

    def end(self, stream: Stream, why: BedrockishError) -> None:
        """End a stream. A second call does nothing."""
        if stream.error is not None:
            return
        stream.error = why
        if self._open.get(stream.name) is stream:
            del self._open[stream.name]
        if not isinstance(why, UsageError):
            self._ended.keep(stream.name, why)
        if stream.is_busy:
            stream.batches.stop()  # the caller that waits for the thread releases the connection
        else:
            self._release(stream)

    def _release(self, stream: Stream) -> None:
        stream.batches.close()
        self._snapshots.give_back(stream.snapshot)

    def end_owner(self, owner: object) -> None:
        """End the streams of a client whose link has ended."""
        self._opening = {name: one for name, one in self._opening.items() if one[0] is not owner}
        for stream in [stream for stream in self._open.values() if stream.owner is owner]:
            self.end(stream, UnavailableError("the client has gone"))

    def end_late(self) -> None:
        """End streams that are idle or open for too long."""
        now = time.monotonic()
        idle_s, life_s = self._bounds.idle_stream_ms / 1000, self._bounds.stream_ms_max / 1000
        for stream in list(self._open.values()):
            if now - stream.since > life_s:
                self.end(stream, DeadlineError(f"the stream was open for {life_s:g} s (stream_ms_max)"))
            elif not stream.is_busy and now - stream.touched > idle_s:
                self.end(stream, DeadlineError(f"the stream was not read for {idle_s:g} s (idle_stream_ms)"))

    def close(self) -> None:
        """End all streams, because the node stops."""
        for stream in list(self._open.values()):
            self.end(stream, UnavailableError("the node is stopping"))
