"""TLS: between nodes, both ends show a certificate; a client may do without one if it has a password instead.

A certificate stands for a node, not for an address: it must carry the node's name, as a DNS name among its subject
alternative names or as its common name. So a node may move to another machine, and a stolen address is worth nothing.
A client knows no names of nodes; it looks for the name or address that it has dialled, as a browser does.
"""

import ssl
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from bedrockish_net.errors import Code, NetError, RefusedError

if TYPE_CHECKING:
    import trio


class CertificateError(NetError):
    """Raised when certificates or keys cannot be loaded. The text names the files; nothing was started."""


def dial_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the context for links that we dial.

    Args:
        ca: path of a PEM file with the certificates that sign the cluster's.
        cert: path of a PEM file with our certificate and the intermediate certificates up to ``ca``.
        key: path of a PEM file with its private key, without a password.

    Raises:
        CertificateError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name that counts is the node's, in its HELLO: see check_certificate
    return _loaded(context, ca, cert, key)


def listen_context(ca: str, cert: str, key: str, *, optional: bool = False) -> ssl.SSLContext:
    """Return the context for links that we accept; same arguments and errors as ``dial_context``.

    With ``optional``, a client may come without a certificate; a peer never may, see ``check_certificate``.
    """
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ca, cert, key)
    if optional:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return the context for a client's links: the node must have a certificate for the name that was dialled.

    Args:
        ca: path of the certificates that sign the nodes'; None for those that this machine trusts.
        cert: path of a certificate of the client, None for none.
        key: path of its private key.

    Raises:
        CertificateError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cert is not None and key is not None:
        _load_chain(context, cert, key)
    return _trusting(context, ca)


def read_revoked(text: str) -> frozenset[int]:
    """Read a list of revoked certificates: a serial number a line, in hexadecimal, and a comment after ``#``.

    Raises:
        CertificateError: a line is something else.
    """
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        serial = line.partition("#")[0].strip().removeprefix("serial=").replace(":", "")
        try:
            if serial:
                found.add(int(serial, 16))
        except ValueError as error:
            raise CertificateError(
                f"line {number} is no serial number; write it as 'openssl x509 -noout -serial' prints it"
            ) from error
    return frozenset(found)


def _shown(stream: "trio.abc.Stream") -> Mapping[str, Any] | None:
    """Return the certificate that the other end has shown, empty if none; None for a stream without TLS.

    Raises:
        BrokenResourceError: the connection broke, so that OpenSSL has forgotten the handshake.
    """
    import trio  # not with the module: a program without an event loop makes contexts only

    if not isinstance(stream, trio.SSLStream):
        return None
    try:
        return stream.getpeercert() or {}
    except ValueError as error:  # "handshake not done yet": no code of ours asks before the handshake
        raise trio.BrokenResourceError from error


def check_revoked(stream: "trio.abc.Stream", revoked: AbstractSet[int]) -> None:
    """Make sure that the certificate of the other end, if it has one, is not on a list of revoked ones.

    Raises:
        RefusedError: it is.
        BrokenResourceError: the connection broke.
    """
    certificate = _shown(stream)
    if certificate and int(certificate["serialNumber"], 16) in revoked:
        names, serial = ", ".join(sorted(certificate_names(certificate))) or "nobody", certificate["serialNumber"]
        raise RefusedError(
            Code.REVOKED, f"the certificate of {names} with the serial number {serial} is revoked; get a new one"
        )


def has_certificate(stream: "trio.abc.Stream") -> bool:
    """Whether the other end of a TLS stream has shown a certificate; it is a valid one then."""
    return bool(_shown(stream))


def certificate_end(stream: "trio.abc.Stream") -> float | None:
    """Return when the certificate ends that the other end has shown, in seconds since 1970.

    None if it showed none, or if the connection broke just now.
    """
    import trio

    try:
        certificate = _shown(stream)
    except trio.BrokenResourceError:
        return None
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else None


def certificate_holders(stream: "trio.abc.Stream") -> list[str]:
    """Return whose certificate the other end of a TLS stream has shown: its common name first, and all other names.

    Empty if it has shown none; an empty text for a certificate without names.
    """
    certificate = _shown(stream)
    if not certificate:
        return []
    common = [str(value) for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return [*common, *sorted(certificate_names(certificate))] or [""]


def _loaded(context: ssl.SSLContext, ca: str, cert: str, key: str) -> ssl.SSLContext:
    _load_chain(_trusting(context, ca), cert, key)
    return context


def _trusting(context: ssl.SSLContext, ca: str | None) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if ca is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(f"cannot read certificates from {ca}: {error}") from error
    return context


def _load_chain(context: ssl.SSLContext, cert: str, key: str) -> None:
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"cannot use certificate {cert} with key {key}: {error}; "
            "both should be PEM files, the key of that certificate and without a password"
        ) from error


def certificate_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that a certificate, as ``getpeercert`` gives it, is for."""
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
    for part in certificate.get("subject", ()):
        names.update(value for key, value in part if key == "commonName")
    return frozenset(names)


def check_certificate(stream: "trio.abc.Stream", node: str) -> None:
    """Make sure that a peer on a TLS stream is the node that it says it is.

    Raises:
        RefusedError: the certificate is of another node.
    """
    shown = _shown(stream)
    if shown is None:
        return
    names = certificate_names(shown)
    # Certificate authorities may change the case of DNS names.
    if node.lower() not in {name.lower() for name in names}:
        raise RefusedError(Code.CERTIFICATE, f"{node!r} showed a certificate of {', '.join(sorted(names)) or 'nobody'}")
