"""A client's side of an interactive transaction: open, think, commit; and settle it if the commit is not answered."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bedrockish.api.requests import Answer
from bedrockish.errors import BedrockishError, ConstraintError, OutcomeUnknownError, UnavailableError
from bedrockish_journal.model.vector import merge
from tools.sim.talks import NOTHING

if TYPE_CHECKING:
    from tools.sim.clients import Call, Client
    from tools.sim.talks import Talks

SETTLES_MAX = 6


class Dialog:
    """One transaction. It ends with an answer, an error (it did not happen), or neither (the outcome is unknown)."""

    def __init__(self, client: "Client", call: "Call") -> None:
        self.client, self.call, self.world = client, call, client.world
        self.step = 0  # counts the questions; an answer to an earlier question is ignored
        self.told = b""
        self.settles = 0

    def begin(self, node: str) -> None:
        self.call.node = node
        self._ask(lambda talks, answer: talks.open(self.call.request, answer), self._opened)

    def settle(self) -> None:
        """Settle the transaction at any node: learn its outcome, or make sure that it never happens."""
        if self.world.short_handed if self.world.closing else self.settles >= SETTLES_MAX:
            self.client.done(self.call)
            return
        self.settles += 1
        self.call.unsure = True
        self.call.node = self.client.luck.choice(self.world.alive_names() or [self.client.home])
        self._ask(lambda talks, answer: talks.settle(self.call.request, answer), self._settled)

    def _ask(
        self,
        what: "Callable[[Talks, Callable[[Answer | BedrockishError], None]], bool]",
        then: Callable[[Answer | BedrockishError | None], None],
    ) -> None:
        world, options = self.world, self.world.options
        self.step += 1
        step = self.step

        def heard(answer: Answer | BedrockishError | None) -> None:
            if step == self.step:
                self.step += 1
                then(answer)

        def arrive() -> None:
            if not what(world.machines[self.call.node].talks, heard):
                world.after(0.01, lambda: heard(UnavailableError("no node can be reached")))

        world.trace(self.client.name, self.call.request.command, then.__name__, self.call.node)
        world.after(self.client.luck.expovariate(1000.0 / max(0.1, options.delay_ms)), arrive)
        world.after(self.call.request.timeout_s + 2.5, lambda: heard(None))

    def _opened(self, answer: Answer | BedrockishError | None) -> None:
        if not isinstance(answer, Answer):
            self.call.error = answer or UnavailableError("no answer came before COMMIT; it did not happen")
            self.client.done(self.call)
            return
        self.told = answer.results
        pause = self.client.luck.choice((0.0, 0.01, 0.2, 2.0)) if not self.world.closing else 0.0
        self.world.after(pause, self._commit)

    def _commit(self) -> None:
        if self.client.luck.random() < 0.1:
            self.settle()  # the client gives the transaction up, which must then never happen
            return
        self._ask(lambda talks, answer: talks.commit(self.call.request, answer), self._committed)

    def _committed(self, answer: Answer | BedrockishError | None) -> None:
        if answer is None or isinstance(answer, OutcomeUnknownError):
            self.settle()
        elif isinstance(answer, Answer):
            self._happened(answer)
        else:
            self.call.error = answer
            self.client.done(self.call)

    def _settled(self, answer: Answer | BedrockishError | None) -> None:
        if isinstance(answer, ConstraintError):  # a committed schema change that the rows forbade
            self.call.error = answer
            self.client.done(self.call)
        elif not isinstance(answer, Answer):  # after a failed settling, the outcome is still unknown
            self.world.after(self.client.luck.uniform(0.01, 0.3), self.settle)
        elif answer.results == NOTHING:
            self.world.counts["settled"] += 1
            self.world.laws.settled[self.call.request.command] = answer
            self.call.error = UnavailableError("settled: it did not happen")
            self.client.done(self.call)
        else:
            self._happened(answer)

    def _happened(self, answer: Answer) -> None:
        if self.told and answer.results != self.told:
            self.world.broken("a transaction is what its client was told", f"{self.call.request.command} is another")
        self.call.answer = answer
        token = self.client.token
        vector = merge(token.vector, answer.token.vector)
        self.client.token = type(token)(vector, max(token.clock, answer.token.clock))
        self.client.done(self.call)
