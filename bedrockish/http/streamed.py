"""Results of any size over HTTP: a line of JSON for each row, written as fast as they are read."""

from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from bedrockish.errors import BedrockishError, UnavailableError, pack_error
from bedrockish.http.bodies import pack_row, pack_token, write_json
from bedrockish.requests import Request, decode_results
from bedrockish.streams import Stream, Streams

LINES = "application/x-ndjson"


async def streamed(streams: Streams, request: Request) -> Response:
    """Return the response for a statement that reads.

    Its first line has the columns, then each row is an array; the last line is an object again, and says how many rows
    there were, or what went wrong. Without that line the result is not whole.

    Raises:
        BedrockishError: it cannot be read.
    """
    stream = await streams.open(object(), request)
    headers = {"cache-control": "no-store"}
    return StreamingResponse(_lines(streams, stream), media_type=LINES, headers=headers)


async def _lines(streams: Streams, stream: Stream) -> AsyncIterator[bytes]:
    try:
        yield _line({"columns": list(stream.columns), "token": pack_token(stream.token), "command": stream.name})
        more = True
        while more:
            encoded, more = await streams.fetch(stream)
            yield b"".join(_line(pack_row(row)) for row in decode_results(encoded)[0].rows)
        yield _line({"rows": stream.rows})
    except BedrockishError as error:
        yield _line({"rows": stream.rows, "error": pack_error(error)})
    finally:
        streams.end(stream, UnavailableError("the client has gone"))


def _line(value: object) -> bytes:
    return write_json(value) + b"\n"
