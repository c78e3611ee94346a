"""Ids for commands that a caller has not named."""

import os
import time

from bedrockish_journal.model.command_id import make_id


def new_command() -> str:
    """Return an id that nobody else has, and that tells when it was made."""
    return make_id(time.time_ns() // 1_000_000, os.urandom(10))
