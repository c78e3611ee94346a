"""A client's record of the TEMP objects of its session: their name, and whether a node has made them."""

from dataclasses import dataclass

from bedrockish.errors import BedrockishError, TemporaryLostError

FRESH = "+"


@dataclass(slots=True)
class Temporary:
    """The name of a session's TEMP objects."""

    name: str = ""  # the name under which the node keeps them; empty if the session has none
    is_made: bool = False  # whether a node has answered a request with that name

    def begin(self, name: str) -> None:
        """Set the name, which must be unique, if none is set yet, because the session makes its first TEMP object."""
        if not self.name:
            self.name, self.is_made = name, False

    @property
    def asked(self) -> str:
        """The name for a request, with ``FRESH`` before it while no node has made the objects."""
        return self.name if self.is_made or not self.name else FRESH + self.name

    def note(self, error: BedrockishError | None = None) -> None:
        """Note the answer to a request with the name: its error, or None if it succeeded."""
        if isinstance(error, TemporaryLostError):
            self.name, self.is_made = "", False
        elif error is None and self.name:
            self.is_made = True
