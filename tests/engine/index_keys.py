"""The keys of index entries, and the ranges that they make."""

from collections.abc import Sequence
from typing import Any

from bedrockish.access_sets.key_encoding import Spec, encoder
from bedrockish_journal.model.access_set import HIGH


def index_prefix(name: str, values: Sequence[Any], specs: Sequence[Spec]) -> bytes:
    """Return the common prefix of the keys of an index's entries whose first columns have these values."""
    return b"i:%b\0" % name.encode() + b"".join(
        encoder(spec)(value) for value, spec in zip(values, specs, strict=False)
    )


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the range of all keys that begin with some whole columns."""
    return prefix, prefix + HIGH
