"""Transactions that programs of this machine have executed on the node's file: their COMMITs and their leased ids.

Only voters lead transactions. A learner checks a transaction of one of its programs, and has a voter commit it, for the
same user and under the same id. Then the learner waits until its own file has the rows, so that the program reads them.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from bedrockish.api.requests import NOTHING, OPEN, SESSION, STRICT, Answer, Request, Statement, Token, as_part_of_trace
from bedrockish.api.wire import COMMIT, SETTLE, UPKEEP, Answered, Ask, Step
from bedrockish.client.credentials import ClientCredentials
from bedrockish.client.request_builder import map_of, new_command
from bedrockish.client.trio_client import Client, open_client
from bedrockish.common.machine import threads_or_unavailable
from bedrockish.core.coordinator.request import write_elsewhere
from bedrockish.core.node import Node
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.merging import may_share
from bedrockish.engine.statements.rowid_allocator import LEASE_MAX
from bedrockish.errors import BedrockishError, UnavailableError, UnsupportedError, UsageError
from bedrockish.local.prepared import Head, check_prepared, decode_prepared, written_heads
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.open import checked
from bedrockish_journal.model.changes import decode_changes_in_pieces

Ids = Callable[[str, int, int], list[int]]  # (table, above, count): leases ``count`` ids above ``above``
LEASE_S = 10.0
AT_ONCE_BYTES = 256 << 10  # a longer transaction is decoded in a thread: a MiB of short rows takes a tenth of a second
SHOWN_S = 5.0  # how long a learner waits until its own file shows a commit


class Voters:
    """A learner's session with the voters, opened when a program first needs it.

    Args:
        entry: returns this node's credentials for links to its peers.
    """

    def __init__(self, state: State, entry: Callable[[], ClientCredentials], cluster: str) -> None:
        self._state, self._entry, self._cluster = state, entry, cluster
        # Set when a session is needed, and when its opening has succeeded or failed.
        self._wanted, self._tried = trio.Event(), trio.Event()
        self._client: Client | None = None
        self._why: BedrockishError | None = None

    async def run(self) -> None:
        """Open the session when it is first needed, and keep it until cancelled.

        The session's client learns by itself of voters that are added later.
        """
        while True:
            await self._wanted.wait()
            try:
                voters = write_elsewhere(self._state).details["voters"]
                url = f"bedrockish://{','.join(voters.values())}/?connect_timeout=2&cluster={self._cluster}"
                async with open_client(url, entry=self._entry()) as client:
                    self._client = client
                    self._announce(None)
                    await trio.sleep_forever()
            except BedrockishError as error:
                self._announce(error)
            finally:
                self._client, self._wanted = None, trio.Event()

    def _announce(self, why: BedrockishError | None) -> None:
        self._why = why
        self._tried.set()
        self._tried = trio.Event()

    async def reach(self) -> Client:
        """Return the session, when it is open.

        Raises:
            UnavailableError: no voter can be reached.
        """
        if self._client is None:
            tried = self._tried
            self._wanted.set()
            await tried.wait()
        if self._client is None:
            because = "" if self._why is None else f": {self._why.message}"
            raise UnavailableError(f"node {self._state.me} is a learner and reaches no voter{because}; try again")
        return self._client

    async def step(self, step: Step) -> Answer:
        """Do a step at a voter; return the voter's answer, or raise its error."""
        answered = await (await self.reach())._call(step, step.request.timeout_s)
        assert isinstance(answered, Answered)
        return answered.answer


class Programs:
    """Commits transactions that programs have executed on a node's file, and leases ids to the programs."""

    def __init__(self, engine: Engine, core: Node, submit: steps.Submit, boundary: Boundary, ids: Ids) -> None:
        self._engine, self._core, self._submit, self._boundary = engine, core, submit, boundary
        self._ids = ids
        self._voters: Voters | None = None
        self.is_closed = False  # whether the node is stopping

    async def reach_voters(self, entry: Callable[[], ClientCredentials], cluster: str) -> None:
        """Reach the voters for this node while it is a learner, until cancelled.

        Args:
            entry: returns this node's credentials for links to its peers.
        """
        self._voters = Voters(self._core.state, entry, cluster)
        await self._voters.run()

    @property
    def _leading_voters(self) -> Voters | None:
        """The voters that commit for this node if it is a learner; None if it is a voter."""
        return None if self._core.state.roster.is_voter(self._core.state.me) else self._voters

    def begin(self, request: Request, data: bytes, *, is_nodes: bool) -> Answer | steps.RemainingSteps[Answer]:
        """Commit a transaction that a program has executed; ``is_nodes``: whether a learner has sent it.

        Return the answer; or the rest of the operation, if it has to wait.

        Raises:
            BedrockishError: the error with which the COMMIT ended.
        """
        return steps.begin(self._commit(as_part_of_trace(request), data, is_nodes=is_nodes))

    def _commit(self, request: Request, data: bytes, *, is_nodes: bool) -> steps.Steps[Answer]:
        state, engine = self._core.state, self._engine
        if self.is_closed:
            raise UnavailableError("the node is stopping; the transaction did not happen: run it at another node")
        if not state.health.reads:
            raise UnavailableError(state.trouble)
        engine.memory.check()
        if len(data) <= AT_ONCE_BYTES:
            prepared = decode_prepared(data)
            heads = written_heads(engine.entries.decode(one) for one in [prepared.changes] if one)
        else:
            prepared, heads = yield from steps.wait(partial(_decode_in_thread, data))
        if engine.batch.is_in_thread:
            yield self._boundary.wait_for_writer
        if not is_nodes:
            self._check(prepared, heads, request)
        elsewhere = None if prepared.readonly or is_nodes else self._leading_voters
        if elsewhere is not None:
            # The token makes the voter wait until it has applied the transaction's base. It needs a clock, because the
            # client would otherwise add the clock of the session's earlier token, which proves less.
            asked = replace(request, statements=(), token=Token(prepared.base, state.read_clock()))
            step = Step(0, asked, COMMIT, data, request.user)
            return (yield from steps.wait(partial(self._commit_elsewhere, elsewhere, step)))
        last = replace(request, statements=(), digest=OPEN)
        prepare = partial(self._check, prepared, heads, request, is_nodes=True) if is_nodes else lambda: prepared
        execute = checked(engine.access, request.user, prepare)
        # A program reads durable states only, so a strict read needs only the question to a majority. If the command
        # has happened, the core answers.
        is_read = prepared.readonly and request.read == STRICT and not is_nodes
        base = prepared.base if is_read and engine.journal.command_txid(request.command) is None else None
        return (yield from steps.wait(self._submit(last, execute, once=True, shares=may_share(prepared), base=base)))

    def _check(self, prepared: Prepared, heads: set[Head], request: Request, *, is_nodes: bool = False) -> Prepared:
        engine = self._engine
        known, rights = engine.connector().known(), engine.access.of(request.user)
        check_prepared(prepared, heads, engine.applied, known, rights, is_nodes=is_nodes)
        return prepared

    async def _commit_elsewhere(self, voters: Voters, step: Step) -> Answer:
        try:
            answer = await voters.step(step)
        except UnsupportedError as error:
            if error.details.get("elsewhere"):
                raise UnavailableError(
                    "the voter is of an older release, which takes no transactions from programs at a learner; it did "
                    "not happen: upgrade the voters, or connect to a URL"
                ) from error
            raise
        with suppress(BedrockishError), trio.move_on_after(SHOWN_S):
            looks = (Statement("SELECT 1"),)
            await self._submit(Request(new_command(), looks, SESSION, token=answer.token, timeout_s=SHOWN_S))
            await self._boundary.durable()
        return answer

    async def settle(self, request: Request) -> Answer | None:
        """Have a voter make sure that a command has happened or never will; return None if this node is a voter."""
        elsewhere = self._leading_voters
        if elsewhere is None:
            return None
        try:
            return await elsewhere.step(Step(0, replace(request, statements=()), SETTLE, b"", request.user))
        except UnavailableError as error:
            if error.details.get("command") != request.command:
                raise
            return Answer(NOTHING, Token())  # a voter has made sure that the command never happens

    async def lease(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Lease ids of a table to a program of this machine, for its new rows, or take unused ids back.

        Raises:
            UsageError: the table has no ids, or the order has another form.
        """
        table, above, count, back = (asked.get(name) for name in ("table", "above", "count", "back"))
        if isinstance(table, str) and isinstance(back, list) and all(type(one) is int for one in back):
            self._engine.connector().ids.take_back(table, back[:LEASE_MAX])
            return {}
        if not isinstance(table, str) or type(above) is not int or type(count) is not int or not 0 < count <= LEASE_MAX:
            raise UsageError(f"a lease names a table, the id above which it begins, and 1 to {LEASE_MAX} ids")
        elsewhere = self._leading_voters
        if elsewhere is not None:
            return map_of(await (await elsewhere.reach())._call(Ask(0, UPKEEP, asked=dict(asked)), LEASE_S))
        await self._boundary.wait_for_writer()
        return {"ids": self._ids(table, above, count)}


def _decode(data: bytes) -> tuple[Prepared, set[Head]]:
    prepared = decode_prepared(data)
    return prepared, written_heads(decode_changes_in_pieces(prepared.changes) if prepared.changes else ())


async def _decode_in_thread(data: bytes) -> tuple[Prepared, set[Head]]:
    """Decode a long transaction, and return it with the tables that it has changed.

    Raises:
        UsageError: the bytes are malformed.
        TooLargeError: the transaction is too large for a message between nodes.
        UnavailableError: the machine gives no further thread.
    """
    with threads_or_unavailable():
        return await trio.to_thread.run_sync(_decode, data)
