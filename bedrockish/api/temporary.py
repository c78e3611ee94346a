"""The TEMP objects of a session, as its client knows them: their name, and whether a node has them."""

from dataclasses import dataclass

from bedrockish.errors import BedrockishError, TemporaryLostError

FRESH = "+"


@dataclass(slots=True)
class Temporary:
    """The name of a session's TEMP objects.

    Attributes:
        name: as the node knows them; empty: the session has none.
        is_made: a node has answered a request with that name.
    """

    name: str = ""
    is_made: bool = False

    def begin(self, name: str) -> None:
        """Give them a name that no others have, if they have none: the session is about to make the first."""
        if not self.name:
            self.name, self.is_made = name, False

    @property
    def asked(self) -> str:
        """The name as it goes into a request."""
        return self.name if self.is_made or not self.name else FRESH + self.name

    def note(self, error: BedrockishError | None = None) -> None:
        """Note the answer to a request that had the name: an error, or another one."""
        if isinstance(error, TemporaryLostError):
            self.name, self.is_made = "", False
        elif error is None and self.name:
            self.is_made = True
