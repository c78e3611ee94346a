"""Checks whether an address is on this machine. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a name or address can be reached only from its own machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
