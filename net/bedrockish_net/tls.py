"""TLS: between nodes, both ends need a certificate; a client may use a password instead.

A certificate stands for a node, not for an address: it must have the node's name, as a DNS name among its subject
alternative names or as its common name. So a node may move to another machine, and taking over its address is not
enough to impersonate it. A client does not know the names of nodes, and checks the name or address that it has dialled,
as a browser does.
"""

import ssl
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from bedrockish_net.errors import Code, NetError, RefusedError

if TYPE_CHECKING:
    import trio

FLIGHTS = 3  # turns of both ends that complete a handshake of TLS 1.3


class CertificateError(NetError):
    """Raised when certificates or keys cannot be loaded. The text names the files; nothing was started."""


def dial_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the context for links that we dial.

    Args:
        ca: path of a PEM file with the certificates that sign the cluster's certificates.
        cert: path of a PEM file with our certificate and the intermediate certificates up to ``ca``.
        key: path of a PEM file with its private key, without a password.

    Raises:
        CertificateError: a file is missing or malformed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # check_certificate compares the node's name in its HELLO instead
    return _loaded(context, ca, cert, key)


def listen_context(ca: str, cert: str, key: str, *, optional: bool = False) -> ssl.SSLContext:
    """Return the context for links that we accept; arguments and errors as in ``dial_context``.

    With ``optional``, a client needs no certificate; a peer always needs one, see ``check_certificate``.
    """
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ca, cert, key)
    if optional:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return the context for a client's links: the node must have a certificate for the name that was dialled.

    Args:
        ca: path of the certificates that sign the nodes' certificates; None for those that this machine trusts.
        cert: path of the client's certificate; None: the client has no certificate.
        key: path of the certificate's private key.

    Raises:
        CertificateError: a file is missing or malformed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cert is not None and key is not None:
        _load_chain(context, cert, key)
    return _trusting(context, ca)


def why_refused(dial: ssl.SSLContext, listen: ssl.SSLContext, node: str, revoked: AbstractSet[int]) -> str:
    """Return why a node with the same authority would refuse our certificate, in words; empty if it would accept it.

    The check is a TLS handshake in memory with the contexts of real links at both ends.
    """
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = dial.wrap_bio(down, up), listen.wrap_bio(up, down, server_side=True)
    for end in (client, server) * FLIGHTS:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError as error:
            return str(error)
    certificate: Mapping[str, Any] = server.getpeercert() or {}
    names = certificate_names(certificate)
    if node.lower() not in {name.lower() for name in names}:
        return f"it names {', '.join(sorted(names)) or 'no node'}, and not {node}"
    return "it is revoked" if int(certificate["serialNumber"], 16) in revoked else ""


def read_revoked(text: str) -> frozenset[int]:
    """Return the serial numbers of a list of revoked certificates: one per line, in hexadecimal, with ``#`` comments.

    Raises:
        CertificateError: a line is malformed.
    """
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        serial = line.partition("#")[0].strip().removeprefix("serial=").replace(":", "")
        try:
            if serial:
                found.add(int(serial, 16))
        except ValueError as error:
            raise CertificateError(
                f"line {number} is not a serial number; write it as 'openssl x509 -noout -serial' prints it"
            ) from error
    return frozenset(found)


def _certificate_of(stream: "trio.abc.Stream") -> Mapping[str, Any] | None:
    """Return the other end's certificate; empty if it has none, and None for a stream without TLS."""
    import trio  # not at the top, because a program without an event loop only creates contexts

    if not isinstance(stream, trio.SSLStream):
        return None
    try:
        return stream.getpeercert() or {}
    except ValueError as error:  # "handshake not done yet": the connection broke after the handshake
        raise trio.BrokenResourceError from error


def check_revoked(stream: "trio.abc.Stream", revoked: AbstractSet[int]) -> None:
    """Check that the other end's certificate, if it has one, is not revoked.

    Raises:
        RefusedError: the certificate is revoked.
        BrokenResourceError: the connection broke.
    """
    certificate = _certificate_of(stream)
    if certificate and int(certificate["serialNumber"], 16) in revoked:
        names, serial = ", ".join(sorted(certificate_names(certificate))) or "no node", certificate["serialNumber"]
        raise RefusedError(
            Code.REVOKED, f"the certificate of {names} with the serial number {serial} is revoked; get a new one"
        )


def has_certificate(stream: "trio.abc.Stream") -> bool:
    """Return whether the other end of a TLS stream has a certificate; TLS has checked that it is valid."""
    return bool(_certificate_of(stream))


def certificate_end(stream: "trio.abc.Stream") -> float | None:
    """Return the time at which the other end's certificate expires, in seconds since 1970.

    Return None if it has no certificate, or if the connection has just broken.
    """
    import trio

    try:
        certificate = _certificate_of(stream)
    except trio.BrokenResourceError:
        return None
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else None


def certificate_holders(stream: "trio.abc.Stream") -> list[str]:
    """Return the names in the other end's certificate: its common name first, then all other names.

    The list is empty without a certificate, and has an empty text for a certificate without names.
    """
    certificate = _certificate_of(stream)
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
            "both should be PEM files, and the key that of the certificate, without a password"
        ) from error


def certificate_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names in a certificate that ``getpeercert`` returned."""
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
    for part in certificate.get("subject", ()):
        names.update(value for key, value in part if key == "commonName")
    return frozenset(names)


def check_certificate(stream: "trio.abc.Stream", node: str) -> None:
    """Check that a peer on a TLS stream has a certificate with the name of its HELLO.

    Raises:
        RefusedError: the peer has no certificate, or that of another node.
    """
    shown = _certificate_of(stream)
    if shown is None:
        return
    names = certificate_names(shown)
    # Certificate authorities may change the case of DNS names.
    if node.lower() not in {name.lower() for name in names}:
        raise RefusedError(
            Code.CERTIFICATE, f"{node!r} showed a certificate of {', '.join(sorted(names)) or 'no node'}"
        )
