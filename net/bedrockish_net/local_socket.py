"""Unix sockets: how programs of one machine reach its node. Access is by the permissions of the socket's file.

A path may be longer than the system's structure for the address of a socket; then the folder is named by a descriptor.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PATH_BYTES_MAX = 100  # of 108, with room for what the system adds


def is_path(host: str) -> bool:
    """Whether a host names a Unix socket: by its absolute path."""
    return host.startswith("/")


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """Give a path that fits into an address, as long as the block lasts."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(path: str, mode: int) -> socket.socket:
    """Return a socket that listens at a path with these permissions; a socket that an ended process left is replaced.

    The caller makes sure that no other process listens there.

    Raises:
        OSError: the path cannot be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.fchmod(listener.fileno(), mode)  # before the file is there: nobody may connect to it with other permissions
        with short_path(path) as short:
            listener.bind(short)
        os.chmod(path, mode)
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: str, seconds: float) -> socket.socket:
    """Return a socket that is connected to a path.

    Raises:
        OSError: nobody listens there, or not for this user.
        TimeoutError: nobody answered in time.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        with short_path(path) as short:
            made.connect(short)
    except BaseException:
        made.close()
        raise
    return made
