"""Tells whether an address is on this machine. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or address, as text, can be reached from its own machine only."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
