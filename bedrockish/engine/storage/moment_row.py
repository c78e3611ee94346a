"""The row ``moment`` of ``bedrockish_meta``, which describes the state of the database in a snapshot of the file.

The row is written with each batch, so any reader of the file, in any language, learns from the snapshot itself which
entries are applied in it. The value is JSON: SQLite reads a part of it with ``value ->> '$.vector.A'``.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import apsw

from bedrockish.engine.storage import system_tables as system
from bedrockish_journal.model.value import value

KEY = "moment"
QUERY = f"SELECT value FROM bedrockish_meta WHERE key = '{KEY}'"


@value
class FileMoment:
    """The state of the database that a snapshot shows."""

    batch: int  # how many batches were committed in the life of the file
    vector: Mapping[str, int]  # the last applied tick of each timeline
    clock: int  # a clock at or after the clock of every applied entry
    schema: int  # version of the schema in force
    in_force: int = 0  # the clock at which the version ``schema`` came into force
    # The clock at which the next version comes into force; None if no change is scheduled.
    following: int | None = None
    members: int = 0  # version of the membership


def write(db: apsw.Connection, moment: FileMoment) -> None:
    """Write the row in the open batch."""
    fields = {
        "batch": moment.batch,
        "vector": moment.vector,
        "clock": moment.clock,
        "schema": moment.schema,
        "in_force": moment.in_force,
        "following": moment.following,
        "members": moment.members,
    }
    system.set_meta(db, KEY, json.dumps(fields, separators=(",", ":")))


@lru_cache(64)  # many connections of a program read the same row after each batch
def read(text: Any) -> FileMoment | None:
    """Return the moment in the row's value; None if it is not the value of such a row."""
    try:
        said = json.loads(text)
        return FileMoment(
            int(said["batch"]),
            {str(leader): int(tick) for leader, tick in said["vector"].items()},
            int(said["clock"]),
            int(said["schema"]),
            int(said["in_force"]),
            None if said["following"] is None else int(said["following"]),
            int(said["members"]),
        )
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
