"""Executes what the core wants executed: in the loop if it is short, aside if it is long or somebody's function."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bedrockish import commands
from bedrockish.asides import StopWorkError
from bedrockish.client.rows import Rows
from bedrockish.commands import Command, Transaction
from bedrockish.core.events import ClockWanted, Decided, Dropped, Event, Executed, Failed
from bedrockish.core.records import Prepared
from bedrockish.engine.aside import Aside, Work
from bedrockish.engine.bulk import check_size
from bedrockish.engine.clocks import ClockNeededError
from bedrockish.engine.limits import TakesLongError
from bedrockish.errors import BedrockishError, DamagedError, TooLargeError, UsageError
from bedrockish.members import prepare_change
from bedrockish.plain import plain
from bedrockish.recalling import again
from bedrockish.requests import SERIALIZABLE, Request, Result, Statement, encode_results
from bedrockish.waiting import Waiter
from journal.changes import encode_changes

if TYPE_CHECKING:
    from bedrockish.runtime import Runtime

WRITES = "this request may only read, and it writes; nothing happened: send it as one that writes"


class Executions:
    """What one node does for an Execute effect."""

    def __init__(self, node: "Runtime") -> None:
        self._node = node

    def execute(self, ticket: int, clock: int, following: deque[Event], group: tuple[int, ...] = ()) -> None:
        """Execute a ticket's request; what the core has to be told at once is added to ``following``.

        Args:
            ticket: which.
            clock: what ``transaction_clock()`` gives in it; 0: nothing yet.
            following: events.
            group: tickets that may share its transaction.
        """
        node = self._node
        waiter = node.waiters.get(ticket)
        if waiter is None:
            following.append(Dropped(ticket))
            return
        request = waiter.request
        node.counts["executions"] += 1
        try:
            entry = node.engine.find_command(request.command)
            if entry is None:
                prepared = self._prepare(ticket, waiter, clock, self._others(group))
                if prepared is not None:
                    following.append(Executed(ticket, prepared))
                return
            node.counts["repeated_commands"] += 1
            found = again(node.engine, entry, request, ticket)
            if isinstance(found, Decided):
                following.append(found)
                return
            node.reply(ticket, found)
        except DamagedError:
            raise
        except ClockNeededError:
            following.append(ClockWanted(ticket))
            return
        except BedrockishError as error:
            following.append(Failed(ticket, error))
            return
        following.append(Dropped(ticket))

    def _others(self, group: tuple[int, ...]) -> list[Request]:
        """Return the requests of a group up to the first that has to be executed on its own."""
        node = self._node
        found: list[Request] = []
        for number in group:
            waiter = node.waiters.get(number)
            if waiter is None or waiter.prepare is not None or node.asides.expects(*waiter.request.texts):
                break
            if node.engine.find_command(waiter.request.command) is not None:
                break
            found.append(waiter.request)
        return found

    def _prepare(self, ticket: int, waiter: Waiter, clock: int, others: list[Request]) -> Prepared | None:
        """Return what a request does, and with it others if it is a short one; or None if that will come later."""
        node, request = self._node, waiter.request
        if waiter.prepare is not None:
            return _checked(request, waiter.prepare())
        if request.change is not None:
            return prepare_change(node.core, node.engine, request.change, node.known.stores, node.clock())
        if request.call is not None:
            command = node.plugins.find(request.call.name, node.core.state.me)
            command.check(request.call)
            node.asides.start(ticket, request, self._calling(command, request), is_python=True, clock=clock > 0)
            return None
        if not node.asides.expects(*request.texts):
            budget_s = node.config.limits.loop_ms_max / 1000
            try:
                if others:
                    return _checked(request, node.engine.execute_together([request, *others], budget_s))
                return _checked(request, node.engine.execute(request, budget_s, clock))
            except TakesLongError as error:
                texts = [one.sql for one in request.statements]
                node.asides.took_long(next((text for text in texts if error.sql in text), texts[0]))
        run = lambda aside: _checked(request, aside.execute(request))  # noqa: E731
        node.asides.start(ticket, request, run, is_python=False, clock=clock > 0)
        return None

    async def explain(self, statement: Statement, *, columns: bool) -> list[dict[str, Any]]:
        """Tell what a text would do, which is found by doing it: aside, for it may take long, or run for ever.

        The columns of a result are found without running anything, so that is done at once, unless it took long before.
        """
        node, sql = self._node, statement.sql
        if columns and not node.asides.expects(sql):
            began = time.monotonic()
            told = node.engine.explain(statement, columns=True)
            if time.monotonic() - began > node.config.limits.loop_ms_max / 1000:
                node.asides.took_long(sql)
            return told
        request = Request("", (statement,))
        return await node.asides.run(request, lambda aside: aside.explain(statement, columns=columns))

    def _calling(self, command: Command, request: Request) -> Callable[[Aside], Prepared]:
        """Return what runs a command at a place aside."""
        node = self._node.core.state.me
        room = self._node.config.limits.result_bytes_max
        assert request.call is not None
        args, kwargs = command.check(request.call)

        def run(work: Work) -> Prepared:
            tx = Transaction(work, request.command, node, time.time())
            try:
                value, processed = command.run(tx, args, kwargs)
                result = encode_results([Result(("value",), [(_value(command, value),)])])
            except (BedrockishError, StopWorkError):
                raise
            except BaseException as error:
                commands.logger.exception("command %s (%s) failed", command.name, request.command)
                raise commands.failed(command.name, node, error) from error
            if len(result) > room:
                raise TooLargeError(f"what command {command.name} returns takes more than {room} bytes; return less")
            prepared = replace(work.finish(), result=result)
            if processed and prepared.readonly:
                # Led all the same: sent again after a lost answer, it must not find that there is nothing to do while
                # its first run commits elsewhere.
                prepared = replace(prepared, readonly=False, changes=encode_changes([]))
            return _checked(request, prepared)

        serializable = request.isolation == SERIALIZABLE
        return lambda aside: aside.work(run, serializable=serializable)


def _value(command: Command, value: object) -> object:
    if isinstance(value, Rows):
        value = value.rows
    try:
        return plain("what it returns", value)
    except UsageError as error:
        raise TypeError(f"{error.message} (from command {command.name})") from None


def _checked(request: Request, prepared: Prepared) -> Prepared:
    if request.read_only and not prepared.readonly:
        raise UsageError(WRITES)
    check_size(prepared)
    return prepared
