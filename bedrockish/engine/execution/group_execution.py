"""Groups of requests in one transaction: each is executed on top of the changes of the requests before it.

Commands that wait for the same key would only conflict with each other. Led together, they cost one round of votes
instead of one round each. The transaction has each request completely or not at all: if a request fails, is slow or
needs more than row changes, the requests before it are executed again without it, so that the captured changes contain
no part of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.api.requests import SERIALIZABLE, Request, digest_of, encode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.prepared_size import check_size
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.clock_functions import Scope
from bedrockish.engine.statements.compiled import READ, SCHEMA
from bedrockish.errors import BedrockishError, DamagedError

if TYPE_CHECKING:
    from bedrockish.engine.execution.executor import Executor


class _AloneError(Exception):
    """Raised when a request needs a transaction of its own."""


class ApartError(Exception):
    """Raised when not all requests can be in one transaction; perhaps the first ``count`` of them can."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def run_longest_prefix(requests: Sequence[Request], run: Callable[[Sequence[Request]], Prepared]) -> Prepared | None:
    """Run as many of the first requests as one transaction can have; return None if only the first can be in it.

    ``run`` raises ApartError if one transaction cannot have all requests that it gets.
    """
    count = len(requests)
    while count > 1:
        try:
            return run(requests[:count])
        except ApartError as error:
            count = min(error.count, count - 1)
    return None


def execute(
    executor: "Executor",  # the executor of the writing connection
    base: dict[str, int],  # the commits that the requests see
    version: int,
    budget_s: float,  # the seconds that all requests together may take
    scope: Scope,  # the values of the clock's functions
    requests: Sequence[Request],  # the requests, all of the same isolation
) -> Prepared:
    """Run at least two requests inside the open transaction; the caller always rolls them back.

    Raises:
        ApartError: a request cannot be in the transaction.
        DamagedError: the file failed; the node must stop.
    """
    gatherer = AccessSetBuilder(executor.analysis, serializable=requests[0].isolation == SERIALIZABLE)
    executor.governor.allow(budget_s)
    executor.capture.start()
    results: list[bytes] = []
    ends = [0]  # the number of changes after each request
    try:
        for request in requests:
            scope.begin(request.command, 0, base)
            result = _run_request(executor, request, gatherer)
            if scope.named:  # the request read its command's id; the journal names a transaction by its first command
                raise _AloneError
            results.append(result)
            ends.append(executor.capture.count)
        can_tell = (
            not executor.capture.hidden_tables
        )  # rows that the hook cannot show are known only for all requests together
        prepared = executor.prepare_rows(gatherer, results[0], base, version, writes=True)
        joined = tuple((one.command, result) for one, result in zip(requests[1:], results[1:], strict=True))
        shares = tuple(end - start for start, end in pairwise(ends)) if can_tell else ()
        users = tuple(one.user for one in requests) if any(one.user for one in requests) else ()
        digests = tuple(map(digest_of, requests))
        prepared = replace(prepared, joined=joined, shares=shares, users=users, digests=digests)
        check_size(prepared)
    except DamagedError:
        raise
    except (TakesLongError, BedrockishError, _AloneError) as error:
        # If all requests have run, or their time is over, they are too much together: try half of those that have run.
        # Otherwise one request has failed: try the requests before it.
        whole = len(results) == len(requests) or isinstance(error, TakesLongError)
        raise ApartError(len(results) // 2 if whole else len(results)) from None
    finally:
        executor.governor.allow(float("inf"))
    return prepared


def _run_request(executor: "Executor", request: Request, gatherer: AccessSetBuilder) -> bytes:
    run = executor.start_run(gatherer)
    for piece, params in (
        one for statement in request.statements for one in executor.texts.pieces(statement, request.user)
    ):
        if piece.setting or piece.kind == SCHEMA:
            raise _AloneError
        run.writes = run.writes or piece.kind != READ
        run.run(piece, params)
    if not run.writes or executor.breaks_foreign_keys:
        raise _AloneError
    return encode_results(run.results)
