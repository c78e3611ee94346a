"""The repetition of unanswered messages; the pauses double, so that repetitions do not overload a slow cluster."""

from dataclasses import dataclass

PAUSE_MAX_S = 30.0


@dataclass(slots=True)
class Repeat:
    """The times of one message that waits for an answer: when it was last sent, and after how long to send it again.

    Both are in seconds.
    """

    sent: float
    pause: float

    def is_due(self, seconds: float) -> bool:
        """Return whether to send the message now, and count it as sent if so."""
        if seconds - self.sent < self.pause:
            return False
        self.sent, self.pause = seconds, min(2 * self.pause, PAUSE_MAX_S)
        return True
