"""The choice of the voters that are asked first: as many as are needed, those whose recent answers were quickest."""

from collections.abc import Iterable

from bedrockish.core.state.state import State

LATE_TIMES = 4  # an answer is late if it takes four times as long as usual
PATIENCE_S = 0.25  # the least number of seconds that a question about every key waits for answers
WEIGHT = 0.2  # the weight of the newest answer in the moving average
ASK_ALL_EVERY = 256  # each 256th question goes to all voters, which finds a voter that has become quicker


class QuickestVoters:
    """The other voters, in the order of their usual times to answer one kind of question."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._usual_s: dict[str, float] = {}  # by voter, its usual time to answer; a voter without answers comes first
        self._count = 0

    def first(self, wanted: int) -> tuple[list[str], list[str]]:
        """Return the voters to ask first, and the voters to ask if one of the first is late.

        Args:
            wanted: how many answers are needed. If fewer voters are up, all voters are returned: they may come back.
        """
        usual_s, roster = self._usual_s, self.state.roster
        voters = roster.voters_up()
        if len(voters) < wanted:
            return [node for node in roster.voters if node != roster.me], []
        self._count += 1
        if len(voters) == wanted or self._count % ASK_ALL_EVERY == 0 or not self.state.settings.ask_rest_ms:
            return voters, []
        voters.sort(key=lambda node: usual_s.get(node, 0.0))
        return voters[:wanted], voters[wanted:]

    def late_ms(self, asked: Iterable[str]) -> float:
        """Return the milliseconds after which the remaining voters are asked."""
        settings = self.state.settings
        # At most half of the least closing lag, so that a BEGIN still reaches the remaining voters in time.
        return min(max(settings.ask_rest_ms, 1000 * self._late_s(asked)), settings.closing_lag_ms_min / 2)

    def patience_s(self, asked: Iterable[str]) -> float:
        """Return the seconds for which a question about every key waits; then its reads ask about their own keys."""
        return min(max(PATIENCE_S, self._late_s(asked)), self.state.settings.suspicion_ms / 1000)

    def _late_s(self, asked: Iterable[str]) -> float:
        return LATE_TIMES * max([self._usual_s.get(node, 0.0) for node in asked])

    def answered(self, node: str, took_s: float) -> None:
        """Record how long an answer took, in seconds."""
        usual_s = self._usual_s.get(node, took_s)
        self._usual_s[node] = usual_s + WEIGHT * (took_s - usual_s)

    def note_late(self, node: str, late_s: float) -> None:
        """Raise a voter's usual time to at least twice its silence of ``late_s`` seconds: its answer is still to come.

        Otherwise the remaining voters, which are asked only now, would seem slower than the silent one: their answers
        are timed from the first question, too.
        """
        self._usual_s[node] = max(self._usual_s.get(node, 0.0), 2 * late_s)
