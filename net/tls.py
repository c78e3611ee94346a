"""TLS between nodes, both ends showing a certificate.

A certificate stands for a node, not for an address: it must carry the node's name, as a DNS name among its subject
alternative names or as its common name. So a node may move to another machine, and a stolen address is worth nothing.
"""

import ssl
from collections.abc import Mapping
from typing import Any

import trio

from net.errors import Code, NetError, RefusedError
from net.events import Hello


class CertificateError(NetError):
    """Raised when certificates or keys cannot be loaded. The text names the files; nothing was started."""


def dial_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the context for links that we dial.

    Args:
        ca: path of a PEM file with the certificates that sign the cluster's.
        cert: path of a PEM file with our certificate and what stands between it and ``ca``.
        key: path of a PEM file with its private key, without a password.

    Raises:
        CertificateError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name that counts is the node's, in its HELLO: see check_certificate
    return _loaded(context, ca, cert, key)


def listen_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the context for links that we accept; same arguments and errors as ``dial_context``."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ca, cert, key)


def _loaded(context: ssl.SSLContext, ca: str, cert: str, key: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(f"cannot read certificates from {ca}: {error}") from error
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"cannot use certificate {cert} with key {key}: {error}; "
            "both should be PEM files, the key of that certificate and without a password"
        ) from error
    return context


def certificate_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that a certificate, as ``getpeercert`` gives it, is for."""
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
    for part in certificate.get("subject", ()):
        names.update(value for key, value in part if key == "commonName")
    return frozenset(names)


def check_certificate(stream: trio.abc.Stream, remote: Hello) -> None:
    """Make sure that a peer on a TLS stream is who it says. Clients need a valid certificate, whatever its name.

    Raises:
        RefusedError: the certificate is of another node.
    """
    if not isinstance(stream, trio.SSLStream) or remote.role != "peer":
        return
    names = certificate_names(stream.getpeercert() or {})
    # Certificate authorities may change the case of DNS names.
    if remote.node.lower() not in {name.lower() for name in names}:
        raise RefusedError(
            Code.CERTIFICATE, f"{remote.node!r} showed a certificate of {', '.join(sorted(names)) or 'nobody'}"
        )
