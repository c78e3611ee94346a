"""A client's record of the TEMP objects of its session: their name, and whether a node has made them."""

from dataclasses import dataclass

from bedrockish.errors import BedrockishError, TemporaryLostError, UsageError

FRESH = "+"  # begins a name under which the node has no objects yet


@dataclass(slots=True)
class Temporary:
    """The name of a session's TEMP objects, and whether a node knows the name."""

    name: str = ""  # the name under which the node keeps the objects; empty if the session has none
    is_made: bool = False  # whether a node has answered a request with that name
    is_refused: bool = False  # whether the statement that would have made the first object has failed

    def set_name(self, name: str) -> None:
        """Set the name, which must be unique, before the session makes its first TEMP object; keep a set name."""
        if not self.name:
            self.name, self.is_made, self.is_refused = name, False, False

    @property
    def asked(self) -> str:
        """The name for a request, with ``FRESH`` before it while no node has made the objects."""
        return self.name if self.is_made or not self.name else FRESH + self.name

    def note(self, error: BedrockishError | None = None, *, first: int | None = None) -> None:
        """Record the answer to a request with the name: its error, or None if it succeeded.

        If the first object could not be made, as in a transaction that changes the schema, no node knows the name. A
        later request that makes no object succeeds nevertheless, so its success does not set ``is_made``.

        Args:
            first: the index of the first statement that makes an object; None if no statement of the request does.
        """
        makes = first is not None and (error is None or int(error.details.get("statement", 0)) > first)
        if isinstance(error, TemporaryLostError):
            self.name, self.is_made = "", False
        elif self.name and (makes or (error is None and not self.is_refused)):
            self.is_made = True
        elif first is not None and isinstance(error, UsageError):
            self.is_refused = True
