"""The cost of each statement at this node since it started: by its text without values, in bounded memory.

Modelled on PostgreSQL's ``pg_stat_statements``. A request is counted once, when it is answered: several statements that
were sent together are one text here. Long requests are logged as well.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bedrockish.api.requests import Answer, Request
from bedrockish.api.shown import TOGETHER_MAX, is_refused, name_of
from bedrockish.common.trace_context import trace_fields
from bedrockish.errors import BedrockishError, ConflictError
from bedrockish_journal.model.value import value

logger = logging.getLogger(__name__)

TEXTS_MAX = 1_000  # the most normalised texts with statistics
SENT_MAX = 2_000  # the most texts as sent whose normalised texts are cached
REFUSED = "(refused: invalid SQL, or SQL that the user may not run)"


@dataclass(slots=True)
class Statistics:
    """The statistics of one text."""

    calls: int = 0  # how often the text was answered
    errors: int = 0  # how often it was answered with an error
    repeats: int = 0  # how often it was executed again, because of a conflict or because it needed the cluster's clock
    result_bytes: int = 0  # the size of all its encoded results
    # ``total_s`` and ``longest_s``: seconds from arrival to answer, in all and at most.
    total_s: float = 0.0
    longest_s: float = 0.0
    last: float = 0.0  # the time of its last answer


@value
class AnsweredRequest:
    """The facts of a request that was answered."""

    took_s: float  # seconds from its arrival to its answer
    failed: bool = False  # whether it was answered with an error
    # Whether that error rejects the text itself. Such a text is not shown: if its quotes are wrong, a value in it may
    # look like a name.
    refused: bool = False
    attempts: int = 1  # how often it was executed
    result_bytes: int = 0  # the size of its encoded results
    user: str = ""  # its user; empty without one
    trace: str = ""  # its trace, as ``traceparent``; empty without one


class StatementStatistics:
    """The statistics of the statements at one node.

    Args:
        slow_log_s: seconds from which on requests are logged; 0: no request is logged.
        clock: returns seconds that only grow.
    """

    def __init__(self, slow_log_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slow_log_s = slow_log_s or float("inf")
        self._clock = clock
        self._since = clock()
        self._sent: dict[int, Statistics] = {}  # by the hash of the texts as sent, which may be long
        self._found: dict[str, Statistics] = {}
        self.forgotten = 0  # number of texts whose statistics were dropped

    def note(self, texts: Sequence[str], ran: AnsweredRequest) -> None:
        """Count a request that was answered."""
        sent = tuple(texts[: TOGETHER_MAX + 1])
        one = self._sent.get(hash(sent))
        if one is None:
            one = self._learn(sent, ran)
        took_s = ran.took_s
        one.calls += 1
        one.errors += ran.failed
        one.repeats += ran.attempts - 1
        one.result_bytes += ran.result_bytes
        one.total_s += took_s
        one.last = self._clock()
        one.longest_s = max(one.longest_s, took_s)
        if took_s >= self._slow_log_s:
            self._log(sent, ran)

    def note_answer(self, request: Request, answer: Answer | BedrockishError, took_s: float, *, asked: bool) -> None:
        """Count a request, with the facts that its answer shows.

        Args:
            request: the request; a change of the members is not a statement.
            answer: its answer, or the error.
            took_s: the seconds since its arrival.
            asked: whether a client sent it. A request that an open transaction makes for itself has no statement, and
                counts only if it is the transaction's commit.
        """
        commits = isinstance(answer, ConflictError) or (isinstance(answer, Answer) and answer.place is not None)
        if request.change is not None or not (asked or commits):
            return
        if isinstance(answer, Answer):
            ran = AnsweredRequest(
                took_s, False, False, answer.attempts, len(answer.results), request.user, request.trace
            )
        else:
            ran = AnsweredRequest(took_s, True, is_refused(answer), user=request.user, trace=request.trace)
        self.note(request.texts, ran)

    def _log(self, sent: tuple[str, ...], ran: AnsweredRequest) -> None:
        whose = f", of {ran.user}" if ran.user else ""
        how = "failed" if ran.failed else f"{ran.result_bytes} bytes of results"
        fields = {
            "took_ms": round(1000 * ran.took_s),
            "executed": ran.attempts,
            "failed": ran.failed,
            "result_bytes": ran.result_bytes,
            "user": ran.user,
            "statement": _shown(sent, ran),
            **trace_fields(ran.trace),
        }
        logger.warning(
            "slow statement: %.0f ms, executed %d times, %s%s: %s",
            *(1000 * ran.took_s, ran.attempts, how, whose, fields["statement"]),
            extra={"fields": fields},
        )

    def _learn(self, sent: tuple[str, ...], ran: AnsweredRequest) -> Statistics:
        name = _shown(sent, ran)
        one = self._found.get(name)
        if one is None:
            if len(self._found) >= TEXTS_MAX:
                self._forget()
            one = self._found[name] = Statistics()
        if len(self._sent) >= SENT_MAX:
            self._sent.clear()  # texts in use are learned again at their next call
        if not ran.refused:
            self._sent[hash(sent)] = one
        return one

    def _forget(self) -> None:
        """Drop a tenth of all texts, those whose last answers are oldest."""
        oldest = sorted(self._found, key=lambda name: self._found[name].last)[: TEXTS_MAX // 10]
        for name in oldest:
            del self._found[name]
        self.forgotten += len(oldest)
        self._sent.clear()

    def describe(self) -> dict[str, Any]:
        """Return the statistics as plain values, the texts that took most time first."""
        ranked = sorted(self._found.items(), key=lambda item: -item[1].total_s)
        found = [
            {
                "sql": name,
                "calls": one.calls,
                "errors": one.errors,
                "repeats": one.repeats,
                "total_ms": round(1000 * one.total_s, 1),
                "mean_ms": round(1000 * one.total_s / one.calls, 2),
                "longest_ms": round(1000 * one.longest_s, 1),
                "result_bytes": one.result_bytes,
            }
            for name, one in ranked
            if one.calls
        ]
        return {"since_ms": round(1000 * (self._clock() - self._since)), "forgotten": self.forgotten, "found": found}

    async def order(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Perform the operator's order ``statements``: return the statistics; with ``reset``, also clear them."""
        found = self.describe()
        if asked.get("reset") is True:
            self.reset()
        return found

    def reset(self) -> None:
        """Clear the statistics."""
        self._since, self.forgotten = self._clock(), 0
        self._found.clear()
        self._sent.clear()


def _shown(texts: Sequence[str], ran: AnsweredRequest) -> str:
    return REFUSED if ran.refused else name_of(texts)
