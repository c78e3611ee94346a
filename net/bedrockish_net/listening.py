"""Opens the sockets on which a node listens: one for each address of its host that this machine has."""

import errno
import logging
import socket
from typing import Any

import trio

logger = logging.getLogger(__name__)

# A machine, such as a container without IPv6, may lack an address that its files name: often ``::1`` of ``localhost``.
LACKING = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


async def open_listeners(host: str | None, port: int) -> list[trio.SocketListener]:
    """Listen on all addresses of a host that this machine has.

    Args:
        host: a name or an address; None for every address of this machine.

    Raises:
        OSError: the name is unknown, an address is taken, or this machine has none of them.
    """
    if host is None:
        return await trio.open_tcp_listeners(port)
    found: Any = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[trio.SocketListener] = []
    lacking: OSError | None = None
    try:
        for where in dict.fromkeys(where for *_, where in found):
            numeric, _ = await trio.socket.getnameinfo(where, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
            try:
                made += await trio.open_tcp_listeners(port, host=numeric)
            except OSError as error:
                if error.errno not in LACKING:
                    raise
                logger.warning("this machine lacks the address %s of %s, and does not listen on it", numeric, host)
                lacking = lacking or error
    except BaseException:
        for listener in made:
            listener.socket.close()
        raise
    if lacking is not None and not made:
        raise lacking
    return made
