"""Executes the core's requests: short ones in the loop, long ones in a worker."""

import time
from collections import Counter, deque
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from bedrockish.api.requests import Answer, Request, Statement, Token
from bedrockish.config.config import Config
from bedrockish.core.coordinator.request import schema_failed
from bedrockish.core.coordinator.revalidation import moved_up
from bedrockish.core.node import Node
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.merging import merge
from bedrockish.engine.execution.prepared_size import check_size
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.storage.index_plan import makes_index, makes_search
from bedrockish.errors import BedrockishError, DamagedError, ForgottenError, UsageError, VoidedError
from bedrockish.node.cluster.incarnations import Incarnations
from bedrockish.node.cluster.membership import prepare_change
from bedrockish.node.plugins import Plugins
from bedrockish.node.rights import check_change
from bedrockish.node.scheduling.durability import Waiter
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.group_timer import GroupTimer
from bedrockish.node.scheduling.turn_loop import FairQueue
from bedrockish.node.scheduling.waiters import Waiters
from bedrockish.node.scheduling.workers import WorkerPool, cancelled, is_bulky
from bedrockish.node.transactions.command_ids import check_removed, check_request
from bedrockish_journal.model.changes import decode_steps
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import SCHEMA
from bedrockish_journal.model.vector import merge as merge_vectors
from bedrockish_journal.storage.schema_history import FAILED, SCHEDULED

# A schema change that makes an index is tried in a worker. If the trial takes more seconds than this, the change comes
# into force after a delay, during which every node builds the index online.
LONG_CHANGE_S = 0.2
# The delay is BUILD_S + BUILD_FACTOR * the trial's time, because a build works only half of the time, and other nodes'
# machines may be slower.
BUILD_S, BUILD_FACTOR = 2.0, 20
TRIAL_FACTOR = 2  # building an FTS5 index takes twice as long as its trial, which merges no segments
SHARING_MAX = 50  # a request with more statements does not share a transaction with others
WRITES = "this request may only read, and it writes; nothing happened: send it as one that writes"


class ServingExecutions(Protocol):
    """The parts of a node that an execution needs."""

    engine: Engine
    core: Node
    config: Config
    workers: WorkerPool
    plugins: Plugins
    incarnations: Incarnations
    counts: Counter[str]
    faults: Faults
    waiters: Waiters

    def clock(self) -> on.Now:
        """Return the time."""

    def reply(self, request_id: int, answer: Answer | BedrockishError) -> None:
        """Answer a client."""


class Executions:
    """Executes the requests for which the core emits Execute."""

    def __init__(self, node: ServingExecutions, groups: GroupTimer) -> None:
        self._node, self._groups = node, groups

    def execute(self, request_id: int, clock: int, following: deque[on.Event], group: tuple[int, ...] = ()) -> None:
        """Execute a client's request; events that the core needs at once are added to ``following``.

        Args:
            clock: the value of ``transaction_clock()`` in the request; 0: the request has no clock yet.
            group: the numbers of requests that may share its transaction.
        """
        node = self._node
        waiter = node.waiters.open.get(request_id)
        if waiter is None:
            following.append(on.Dropped(request_id))
            return
        request = waiter.request
        node.counts["executions"] += 1
        try:
            entry = find_command(node.engine, request)
            if entry is None:
                prepared = self._prepare(request_id, waiter, clock, self._others(waiter, group) if group else [])
                if prepared is not None:
                    self.check_modules(prepared)
                    node.waiters.count_prepared(request_id, prepared)
                    following.append(on.Executed(request_id, prepared))
                else:
                    following.append(on.MovedToWorker(request_id))
                return
            node.counts["repeated_commands"] += 1
            found = again(node.engine, entry, request, request_id)
            if isinstance(found, on.Decided):
                following.append(found)
                return
            node.reply(request_id, found)
        except DamagedError:
            raise
        except ClockNeededError:
            following.append(on.ClockWanted(request_id))
            return
        except BedrockishError as error:
            following.append(on.Failed(request_id, error))
            return
        except Exception as error:
            following.append(
                on.Failed(request_id, node.faults.caught(f"the execution of command {request.command}", error))
            )
            return
        following.append(on.Dropped(request_id))

    def check_modules(self, prepared: Prepared) -> None:
        """Check that every member has the vector modules that a schema change uses for its tables.

        Raises:
            UnsupportedError: a member lacks a module.
        """
        if prepared.kind == SCHEMA and b"USING" in prepared.changes.upper():
            roster = self._node.core.state.roster
            others = (node for node in roster.membership.members if node != self._node.core.state.me)
            self._node.plugins.check_modules((step.sql for step in decode_steps(prepared.changes)), others)

    def take(self, asked: FairQueue[on.Submitted]) -> on.Submitted:
        """Remove and return the next short write, with the following writes that can share its transaction."""
        first = asked.take()
        others: list[tuple[int, Request]] = []
        while asked.count and len(others) < self._node.core.coordinator.command_groups.size - 1:
            if (asked.peek().request.isolation, asked.peek().once) != (first.request.isolation, first.once):
                break
            other = asked.take()
            others.append((other.request_id, other.request))
        self._groups.executed(1 + len(others))
        return replace(first, others=tuple(others)) if others else first

    def is_short_write(self, event: on.Submitted) -> bool:
        """Return whether a request is known to only write rows, and usually does not take long."""
        request, waiter = event.request, self._node.waiters.open.get(event.request_id)
        if waiter is not None and waiter.shares:
            return True
        if event.once or waiter is None or waiter.prepare is not None or len(request.statements) > SHARING_MAX:
            return False
        if request.read_only or request.change is not None or is_bulky(request):
            return False
        return self._node.engine.only_writes(request.texts) and not self._takes_long(request)

    def _takes_long(self, request: Request) -> bool:
        return self._node.workers.expects(*request.texts)

    def _others(self, first: Waiter, group: tuple[int, ...]) -> list[Waiter]:
        """Return the requests of a group up to the first one that needs a transaction of its own."""
        node = self._node
        found: list[Waiter] = []
        for number in group:
            waiter = node.waiters.open.get(number)
            if waiter is None or (waiter.prepare is None) != (first.prepare is None) or waiter.shares != first.shares:
                break
            if (waiter.prepare is not None and not waiter.shares) or self._takes_long(waiter.request):
                break
            if node.engine.journal.command_txid(waiter.request.command) is not None:
                break
            found.append(waiter)
        return found

    def _prepare(self, request_id: int, waiter: Waiter, clock: int, others: list[Waiter]) -> Prepared | None:
        """Execute a request, and ``others`` with it if it is short; return the result, or None if a worker runs it."""
        node, request = self._node, waiter.request
        if waiter.is_abandoned:
            raise cancelled(f"command {request.command}")
        if waiter.prepare is not None:
            prepared = _checked(request, waiter.prepare())
            if not others:
                return prepared
            each = [(other.request, other.prepare) for other in others if other.prepare is not None]
            return merge((request, prepared), each, partial(moved_up, node.core.state), node.engine.entries.join)
        if request.change is not None:
            check_change(node.engine.access, request.change, request.user)
            return prepare_change(node.core, node.engine, request.change, node.incarnations.stores, node.clock())
        if not (self._takes_long(request) or node.engine.is_slow_to_roll_back or is_bulky(request)):
            budget_s = node.config.limits.loop_ms_max / 1000
            try:
                if others:
                    together = [request, *(other.request for other in others)]
                    return _checked(request, node.engine.execute_together(together, budget_s))
                prepared = node.engine.execute(request, budget_s, clock)
                if node.workers.long_texts:
                    node.workers.was_short(*request.texts)
                if prepared.kind != SCHEMA or not makes_search(decode_steps(prepared.changes)):
                    return _checked(request, prepared)
            except TakesLongError as error:
                node.workers.took_long(next((text for text in request.texts if error.sql in text), request.texts[0]))
        node.workers.start(request_id, request, partial(self._in_worker, request), clock=clock > 0)
        return None

    def _in_worker(self, request: Request, workspace: Workspace) -> Prepared:
        """Run a request in a workspace, and return the result; a schema change that takes long gets a delay."""
        began = time.monotonic()
        prepared = _checked(request, workspace.execute(request))
        took_s = time.monotonic() - began
        self.check_modules(prepared)
        if prepared.kind != SCHEMA:
            return prepared
        steps = decode_steps(prepared.changes)
        if makes_search(steps):
            took_s = TRIAL_FACTOR * workspace.seconds_to_index(steps)
        elif not makes_index(steps):
            return prepared
        if took_s < LONG_CHANGE_S:
            return prepared
        return replace(prepared, delay_ms=round(1000 * (BUILD_S + BUILD_FACTOR * took_s)))

    async def explain(self, statement: Statement, user: str, *, columns: bool) -> list[dict[str, Any]]:
        """Return the reads and writes of a text's statements, which a worker runs to find them.

        With ``columns``, return the columns of the first statement's result instead; these are found in the loop,
        without running the text, unless the text has taken long before.
        """
        node, sql = self._node, statement.sql
        if columns and not node.workers.expects(sql):
            began = time.thread_time()
            told = node.engine.explain(statement, user, columns=True)
            if time.thread_time() - began > node.config.limits.loop_ms_max / 1000:
                node.workers.took_long(sql)
            return told
        request = Request("", (statement,), user=user)
        return await node.workers.run(request, lambda workspace: workspace.explain(statement, user, columns=columns))


def _checked(request: Request, prepared: Prepared) -> Prepared:
    if request.read_only and not prepared.readonly:
        raise UsageError(WRITES)
    try:
        check_size(prepared)
    except UsageError as error:
        error.rests_on = replace(prepared, readonly=True)
        raise
    return prepared


def find_command(engine: Engine, request: Request) -> Entry | None:
    """Return the entry of a request's command; None if the command has not happened.

    Raises:
        CommandIdError: the command's entry was removed, and the command was another user's or had another request.
        ForgottenError: the entry was removed, or the id is so old that its entry may have been removed.
    """
    try:
        return engine.journal.find_command(request.command)
    except ForgottenError:
        removed = engine.journal.removed_command(request.command)
        if removed is not None:
            check_removed(engine.access, removed, request)
        raise


def again(engine: Engine, entry: Entry, request: Request, request_id: int) -> Answer | on.Decided:
    """Return the answer to a request whose command has happened before, from the command's entry.

    For a schema change that is not in force here yet, return the event ``Decided`` for the core instead.

    Raises:
        CommandIdError: the id is another user's or another request's, or was settled, so the request never happens.
        ConstraintError: the command was a schema change that failed on the data.
        VoidedError: no node could apply the entry, and an operator had its changes skipped.
    """
    check_request(engine.access, entry, request)
    command, token, transaction = request.command, request.token, entry.transaction
    if entry.txid in engine.entries.void:
        raise VoidedError(
            f"command {command} became {entry.leader}{entry.tick}, which no node could apply, and which was "
            "applied without its changes by an operator's order; it did not happen: send it under a new id"
        )
    change = engine.versions.standing(entry.txid) if transaction.kind == SCHEMA else None
    if change is not None and change.state == FAILED:
        raise schema_failed(change.failure)
    vector = merge_vectors(entry.after, {entry.leader: entry.tick}, token.vector)
    clock = max(entry.txid.clock, transaction.activates, token.clock)
    answer = Answer(transaction.result_of(command), Token(vector, clock), entry.place)
    is_scheduled = change is not None and change.state == SCHEDULED
    return on.Decided(request_id, entry.txid, answer) if is_scheduled else answer
