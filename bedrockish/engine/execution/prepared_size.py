"""The bound on the size of a prepared transaction: its rows, its results and its access set together."""

from bedrockish.access_sets.analysis import BYTES_MAX
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import TooLargeError


def check_size(prepared: Prepared) -> None:
    """Check that a transaction, or the keys of a read, fit into one message to the other nodes.

    Raises:
        TooLargeError: they do not fit.
    """
    keys = prepared.access_set
    size = 0 if prepared.readonly else len(prepared.changes) + len(prepared.result)
    if prepared.joined:
        size += sum(len(result) for _, result in prepared.joined)
    size += sum(map(len, keys.read_points)) + sum(map(len, keys.write_points))
    for low, high in (*keys.read_ranges, *keys.write_ranges):
        size += len(low) + len(high)
    if size > BYTES_MAX:
        raise TooLargeError(
            f"the transaction takes {size} bytes with its rows, its results and their keys, and at most {BYTES_MAX} "
            "can be sent to the other nodes; split it into several",
            limit=BYTES_MAX,
        )
