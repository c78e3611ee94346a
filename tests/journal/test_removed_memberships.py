"""The record of removed memberships is read strictly."""

import cbor2
import pytest

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.storage.file_claims import removed_memberships


def test_removed_memberships_are_read_by_timeline() -> None:
    assert removed_memberships(None) == {}
    assert removed_memberships(cbor2.dumps({"A": [[3, b"one"], [5, b"two"]]})) == {"A": [(3, b"one"), (5, b"two")]}


@pytest.mark.parametrize("kept", [7, b"", b"\xff", cbor2.dumps([1]), cbor2.dumps({"A": [[3, 1 << 40]]})])
def test_malformed_record_of_removed_memberships_is_refused(kept: object) -> None:
    """An integer in place of a membership must not become as many zeros."""
    with pytest.raises(EntryMalformedError, match="removed memberships cannot be read"):
        removed_memberships(kept)
