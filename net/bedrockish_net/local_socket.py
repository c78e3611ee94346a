"""Addresses on this machine: loopback names, and Unix sockets, by which programs reach the node on their machine.

The permissions of a Unix socket's file control access to it.

If a path is too long for a socket address, it is replaced by a path under /proc that names the folder by a descriptor.
"""

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PATH_BYTES_MAX = 100  # most bytes of a path: a socket address has 108, some of which the system may need
NAME_BYTES_MAX = 80  # limit of the file's name; the rest of PATH_BYTES_MAX is for the folder under /proc


def is_path(host: str) -> bool:
    """Return whether a host is the absolute path of a Unix socket."""
    return host.startswith("/")


def is_loopback(host: str) -> bool:
    """Return whether a name or address can be reached only from its own machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def has_short_name(path: str) -> bool:
    """Return whether a file with this path can be a socket that programs reach."""
    return len(os.fsencode(path)) <= PATH_BYTES_MAX or len(os.fsencode(os.path.basename(path))) <= NAME_BYTES_MAX


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a path for the same file that fits into a socket address; it is valid inside the block.

    Raises:
        OSError: the folder cannot be opened, or the name alone is too long.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    folder, name = os.path.split(path)
    if not has_short_name(path):
        raise OSError(errno.ENAMETOOLONG, f"the name of a Unix socket has at most {NAME_BYTES_MAX} bytes", path)
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(path: str, mode: int) -> socket.socket:
    """Return a socket that listens at a path with the permissions ``mode``, replacing the socket of an ended process.

    The caller makes sure that no other process listens at the path.

    Raises:
        OSError: the path cannot be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.fchmod(listener.fileno(), mode)  # before bind creates the file, so that it never has other permissions
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
        OSError: no process listens at the path, or this user has no permission.
        TimeoutError: the connection was not accepted in time.
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
