"""Results of any size over HTTP: a line of JSON for each row, written as fast as the caller reads."""

from collections.abc import AsyncGenerator, Callable

from bedrockish.api.json_forms import pack_object, pack_row, pack_token, unique_names, write_json
from bedrockish.api.requests import Request, decode_results
from bedrockish.errors import BedrockishError, UnavailableError, pack_error
from bedrockish.http.messages import HttpReply, lines_reply
from bedrockish.node.transactions.callers import Owner
from bedrockish.node.transactions.cursors import Stream, Streams

LINES = "application/x-ndjson"


async def streamed(
    streams: Streams,  # opens and reads streams
    owner: Owner,  # the caller, whose streams end together
    request: Request,  # the request with the statement
    cluster_id: str,  # the id of the cluster, for the token
    check_stay: Callable[[], None],  # raises AuthenticationError if the caller's token has expired
    *,
    objects: bool,  # whether rows are written as objects
) -> HttpReply:
    """Return the response for a statement that reads.

    The first line has the columns. Then each line is a row: an array, or an object with the key ``row``. The last line
    is an object with the number of rows, ``rows``, and with ``error`` if reading failed. Without that line the result
    is not whole.

    Raises:
        BedrockishError: the stream cannot be opened.
    """
    stream = await streams.open(owner, request)
    return lines_reply(_lines(streams, stream, cluster_id, check_stay, objects=objects), LINES)


async def _lines(
    streams: Streams, stream: Stream, cluster_id: str, check_stay: Callable[[], None], *, objects: bool
) -> AsyncGenerator[bytes]:
    names = unique_names(stream.columns) if objects else []
    try:
        token = pack_token(stream.token, cluster_id)
        yield _line({"columns": list(stream.columns), "token": token, "command": stream.name})
        more = True
        while more:
            check_stay()
            encoded, more = await streams.fetch(stream)
            rows = decode_results(encoded)[0].rows
            yield b"".join(_line({"row": pack_object(names, row)} if objects else pack_row(row)) for row in rows)
        yield _line({"rows": stream.rows})
    except BedrockishError as error:
        yield _line({"rows": stream.rows, "error": pack_error(error)})
    finally:
        streams.end(stream, UnavailableError("the client has gone"))


def _line(value: object) -> bytes:
    return write_json(value) + b"\n"
