"""Access tokens: signed proofs of a user's name that expire, so that no node has to store them. Pure.

The signing key is derived from the stored form of the user's password and from the cluster's id. So every node has it,
a new password ends all tokens of the old one, and a token is not valid in another cluster. The signature is HMAC with
SHA-256.
"""

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

import cbor2

PREFIX = "bdr1."
TOKEN_CHARACTERS_MAX = 500
FOR_S_MAX = 366 * 86_400.0


class AccessToken(NamedTuple):
    """The user whom a token names, and the time at which the token expires."""

    user: str
    until_ms: int  # when the token expires, in milliseconds since 1970


def make_token(said: AccessToken, secret: str, cluster_id: str) -> str:
    """Return a token, signed with ``secret``, the stored form of the user's password."""
    payload = cbor2.dumps([said.user, said.until_ms])
    return f"{PREFIX}{_text(payload)}.{_text(_sign(payload, secret, cluster_id))}"


def read_token(text: str) -> AccessToken | None:
    """Return the content of a token without a check of its signature; None if the text is not a token."""
    parts = _parts(text)
    if parts is None:
        return None
    try:
        user, until_ms = cbor2.loads(parts[0])
    except (cbor2.CBORError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(user, str) or type(until_ms) is not int:
        return None
    return AccessToken(user, until_ms)


def is_signed(text: str, secret: str, cluster_id: str) -> bool:
    """Return whether the token was signed with the key of this user and cluster."""
    parts = _parts(text)
    return parts is not None and hmac.compare_digest(parts[1], _sign(parts[0], secret, cluster_id))


def _sign(payload: bytes, secret: str, cluster_id: str) -> bytes:
    key = hashlib.sha256(f"bedrockish token\0{cluster_id}\0{secret}".encode()).digest()
    return hmac.digest(key, payload, "sha256")


def _parts(text: str) -> tuple[bytes, bytes] | None:
    if not text.startswith(PREFIX) or len(text) > TOKEN_CHARACTERS_MAX:
        return None
    payload, dot, mac = text[len(PREFIX) :].partition(".")
    try:
        parts = _bytes(payload), _bytes(mac)
    except (binascii.Error, ValueError):
        return None
    # Other encodings of the same bytes are refused, so that a token has only one valid text.
    return parts if dot and (payload, mac) == (_text(parts[0]), _text(parts[1])) else None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
