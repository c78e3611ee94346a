"""Reads serial number and expiry of our own certificate, which the standard library does not provide. Pure.

``ssl`` decodes only certificates of other ends, so the first levels of DER are decoded here (RFC 5280, section 4.1).
"""

import ssl
from datetime import UTC, datetime

_SEQUENCE, _INTEGER, _UTC_TIME, _TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0


def read_certificate(pem: str) -> tuple[int, datetime]:
    """Return serial number and expiry of the first certificate of a PEM text.

    Raises:
        ValueError: the text has no certificate.
    """
    begin, end = pem.find(ssl.PEM_HEADER), pem.find(ssl.PEM_FOOTER)
    if not 0 <= begin < end:
        raise ValueError("the text has no certificate")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(ssl.PEM_FOOTER)])
    certificate, _ = _split(der, _SEQUENCE)
    signed, _ = _split(certificate, _SEQUENCE)
    if signed[:1] == bytes([_VERSION]):
        _, signed = _split(signed, _VERSION)
    serial, rest = _split(signed, _INTEGER)
    _, rest = _split(rest, _SEQUENCE)  # skip the algorithm
    _, rest = _split(rest, _SEQUENCE)  # skip the issuer
    validity, _ = _split(rest, _SEQUENCE)
    _, rest = _split(validity)
    ends, _ = _split(rest)
    return int.from_bytes(serial, "big"), _time(rest[0], ends)


def _split(der: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """Return the content of the first DER value and the remaining bytes."""
    if len(der) < 2 or tag not in (None, der[0]):
        raise ValueError("this is not a certificate")
    length, start = der[1], 2
    if length & 0x80:  # the other bits are the number of bytes of the length
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if start + length > len(der):
        raise ValueError("the certificate is truncated")
    return der[start : start + length], der[start + length :]


def _time(tag: int, text: bytes) -> datetime:
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise ValueError("the certificate has no date at which it ends")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
