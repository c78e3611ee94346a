"""Words for parts of the journal that several commands print."""

from collections.abc import Mapping

from bedrockish.cli.safe_text import visible


def labels(vector: Mapping[str, int]) -> str:
    """Return the last entry of each timeline, such as ``A3 B7``."""
    return " ".join(f"{leader}{tick}" for leader, tick in sorted(vector.items())) or "nothing"


def whose(command: str, user: str | None) -> str:
    """Return a command together with its user, if it has one."""
    return command if user is None else f"{command} of {visible(user)}"
