"""The signatures of an anchor, made with the keys of the nodes' certificates by the cryptography package.

A node signs with the key of its certificate for links (extra ``[tls]``), so no other key has to be created and
exchanged. The anchor contains the certificate; a signature stays valid after the certificate has expired.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from bedrockish_journal.model.anchor import SIGNED_AS, Anchor, AnchorError, Signature
from bedrockish_journal.model.chain import Finding
from bedrockish_journal.verify.anchored import LAW, Anchored

CHAIN_MAX = 5  # certificates between a node's certificate and the authority's


def sign(text: str, certificates: str, key: str) -> Signature:
    """Return the signature of a statement.

    Args:
        certificates: PEM, the node's own certificate first.
        key: the node's private key, PEM.

    Raises:
        ValueError: the key is not EC, Ed25519 or RSA.
    """
    private, data = load_pem_private_key(key.encode(), None), SIGNED_AS + text.encode()
    if isinstance(private, ec.EllipticCurvePrivateKey):
        signed = private.sign(data, ec.ECDSA(hashes.SHA256()))
    elif isinstance(private, ed25519.Ed25519PrivateKey):
        signed = private.sign(data)
    elif isinstance(private, rsa.RSAPrivateKey):
        signed = private.sign(data, padding.PKCS1v15(), hashes.SHA256())
    else:
        raise ValueError(f"a key of the kind {type(private).__name__} cannot sign an anchor; use EC, Ed25519 or RSA")
    return Signature(certificates, signed.hex())


def read_authority(path: Path) -> list[x509.Certificate]:
    """Return the certificates of the authorities that may sign the nodes' certificates.

    Raises:
        AnchorError: the file cannot be read, or has no certificate.
    """
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise AnchorError(str(path), f"the certificates in {path} cannot be read: {error.strerror}") from error
    except ValueError:
        raise AnchorError(str(path), f"{path} has no certificates; give the ca.pem of 'bedrockish tls'") from None


def check_signatures(told: Anchored, anchors: Sequence[Anchor], authority: Sequence[x509.Certificate]) -> None:
    """Check that a majority of voters has signed each anchor, and add the faults to the findings."""
    told.signed = 0
    for anchor in anchors:
        said, signed = anchor.statement, set()
        for node, one in anchor.signatures.items():
            why_not = "it has no certificate" if one is None else _why_not(anchor, node, one, authority)
            if not why_not:
                signed.add(node)
            elif one is not None:
                text = f"the signature of {node} under anchor {said.number} does not count: {why_not}"
                told.findings.append(Finding(LAW, node, text=text))
        counted = signed.intersection(said.voters)
        if len(counted) >= said.quorum:
            told.signed += 1
        else:
            text = (
                f"anchor {said.number} is signed by {', '.join(sorted(counted)) or 'nobody'}, and not by a majority of "
                f"its voters, which are {', '.join(said.voters)}"
            )
            told.findings.append(Finding(LAW, "", text=text))


def _why_not(anchor: Anchor, node: str, one: Signature, authority: Sequence[x509.Certificate]) -> str:
    """Return the reason why a signature does not count; empty if it counts."""
    try:
        chain = x509.load_pem_x509_certificates(one.certificates.encode())[: CHAIN_MAX + 1]
        own = chain[0]
        if node not in _names(own):
            return f"its certificate is that of {', '.join(sorted(_names(own))) or 'nobody'}"
        _verify(own, bytes.fromhex(one.signature), SIGNED_AS + anchor.text.encode())
        at = datetime.datetime.fromtimestamp(anchor.statement.wall_ms / 1000, datetime.UTC)
        for place, certificate in enumerate(chain):
            if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
                return f"a certificate was not valid at {at:%Y-%m-%d %H:%M:%S}Z"
            if place and not _may_issue(certificate):
                return "who has signed its certificate is no authority"
            if any(_issued(certificate, by) for by in authority):
                return ""
            if place + 1 == len(chain) or not _issued(certificate, chain[place + 1]):
                break
    except InvalidSignature:
        return "it does not fit the statement"
    except (ValueError, TypeError, IndexError, OverflowError, UnsupportedAlgorithm) as error:
        return f"it cannot be read ({error})"
    return "its certificate is not of the given authority"


def _names(certificate: x509.Certificate) -> set[str]:
    """Return the names in a certificate: its DNS names and its common name, as for links."""
    found = {str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return found
    return found.union(names.get_values_for_type(x509.DNSName))


def _may_issue(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _verify(certificate: x509.Certificate, signature: bytes, data: bytes) -> None:
    """Check a signature."""
    public = certificate.public_key()
    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    elif isinstance(public, ed25519.Ed25519PublicKey):
        public.verify(signature, data)
    elif isinstance(public, rsa.RSAPublicKey):
        public.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
    else:
        raise ValueError(f"a key of the kind {type(public).__name__}")
