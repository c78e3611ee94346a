"""The effects that the client's core returns to its driver, in order."""

from bedrockish.api.url import Address
from bedrockish.api.wire import Answered, Told
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.value import value


@value
class Dial:
    """Open a link to an address and say HELLO; report ``opened`` or ``closed``."""

    link: int
    address: Address
    timeout_s: float


@value
class Send:
    """Send a payload on an open link."""

    link: int
    payload: bytes


@value
class HangUp:
    """Close a link; the driver reports no further event of it."""

    link: int


@value
class Finish:
    """Give a call's outcome to its waiting caller."""

    call: int
    outcome: Answered | Told | BedrockishError


Effect = Dial | Send | HangUp | Finish
