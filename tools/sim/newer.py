"""Strict reads of one machine that share one question to a quorum, as ``bedrockish.node.scheduling.strict_reads``."""

from typing import TYPE_CHECKING

from bedrockish.api.requests import STRICT, Answer, Request, Token
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import NewerAsked
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.vector import covers, merge
from tools.sim.talks import Answerer

if TYPE_CHECKING:
    from tools.sim.machine import Machine

READS = frozenset({"read", "scan", "journal"})
SHARE = 0.7  # fraction of the strict reads that share questions; the core answers the others


class NewerQuestions:
    """The shared strict reads of a machine from one start to its stop."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.waiting: list[tuple[Request, Answerer]] = []
        self.asked: list[tuple[Request, Answerer, Answer]] = []
        self.number = 0

    def take(self, node: Node, request: Request, answer: Answerer) -> bool:
        """Let a strict read share the next question; return False if the core has to answer the read."""
        if request.read != STRICT or any(one.sql not in READS for one in request.statements):
            return False
        if len(node.state.votes.pending) or self.machine.luck.random() > SHARE:
            return False
        self.waiting.append((request, answer))
        return True

    def question(self, node: Node) -> NewerAsked | None:
        """Execute the waiting reads, and return the question about them, or None if no read needs a question."""
        if self.asked or not self.waiting:
            return None
        machine, image = self.machine, self.machine.disk.seen
        waiting, self.waiting = self.waiting, []
        base = dict(image.applied)
        for request, answer in waiting:
            try:
                if node.state.trouble or image.scheduled is not None or request.command in image.commands:
                    raise BedrockishError("for the core")
                if not covers(base, request.token.vector):
                    raise BedrockishError("for the core")
                prepared = machine.execute(request, 0)
            except BedrockishError:
                machine.submit(request, answer, alone=True)
                continue
            clock = max(request.token.clock, node.state.read_clock())
            token = Token(node.state.timelines.in_short(merge(base, request.token.vector)), clock)
            self.asked.append((request, answer, Answer(prepared.result, token)))
        if not self.asked:
            return None
        self.number += 1
        return NewerAsked(self.number, base)

    def answered(self, number: int, *, may_exist: bool) -> None:
        """Answer the reads of a question, or pass them to the core if newer commits are possible."""
        assert number == self.number
        asked, self.asked = self.asked, []
        self.machine.world.counts["shared strict reads"] += 0 if may_exist else len(asked)
        for request, answerer, answer in asked:
            if may_exist:
                self.machine.submit(request, answerer, alone=True)
            else:
                self.machine.world.flips.answers(self.machine, answer)
                self.machine.answer_when_durable(answerer, answer)
