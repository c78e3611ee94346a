"""Passwords of users: only hashes of them are kept, in the form that ``bedrockish password`` prints. Pure.

The function is scrypt (RFC 7914), whose need of memory makes it expensive to try many passwords. Each hash contains its
parameters, so that later hashes may be costlier.
"""

import base64
import hashlib
import hmac
import re
import unicodedata
from dataclasses import dataclass

from bedrockish.errors import UsageError

SALT_BYTES, HASH_BYTES = 16, 32
LOG_N, R, P = 14, 8, 1  # parameters of scrypt: a hash takes 16 MiB and some 50 ms
PASSWORD_CHARACTERS_MAX = 1000
USER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_FORM = re.compile(r"scrypt:([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}):([\w-]{22}):([\w-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class PasswordHash:
    """The hash of one password."""

    log_n: int  # binary logarithm of the cost
    r: int  # block size
    p: int  # parallelism
    salt: bytes  # random bytes
    digest: bytes  # the result of scrypt for the password

    def __str__(self) -> str:
        return f"scrypt:{self.log_n}:{self.r}:{self.p}:{_text(self.salt)}:{_text(self.digest)}"

    def fits(self, password: str) -> bool:
        """Return whether a hash is that of a password. Takes some 50 ms, with the interpreter's lock released."""
        return hmac.compare_digest(self.digest, _scrypt(password, self.salt, self.log_n, self.r, self.p))


def hash_password(password: str, salt: bytes) -> PasswordHash:
    """Return the hash of a password, with a salt of ``SALT_BYTES`` random bytes.

    Raises:
        UsageError: the password is empty or longer than ``PASSWORD_CHARACTERS_MAX``.
    """
    assert len(salt) == SALT_BYTES
    if not 0 < len(password) <= PASSWORD_CHARACTERS_MAX:
        raise UsageError(f"a password has 1 to {PASSWORD_CHARACTERS_MAX} characters; this one has {len(password)}")
    return PasswordHash(LOG_N, R, P, salt, _scrypt(password, salt, LOG_N, R, P))


def read_hash(text: str) -> PasswordHash | None:
    """Parse the text that ``str`` of a hash returns; None if the text has another form, or the cost is implausible."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    log_n, r, p = (int(match[place]) for place in (1, 2, 3))
    if not (1 <= log_n <= 20 and 1 <= r <= 16 and 1 <= p <= 4):
        return None
    return PasswordHash(log_n, r, p, _bytes(match[4]), _bytes(match[5]))


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    # The same password typed on two keyboards may arrive as different code points. A lone surrogate has no UTF-8 form,
    # hence ``surrogatepass``.
    data = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    memory = (128 * r * ((1 << log_n) + p + 2)) + (1 << 20)
    return hashlib.scrypt(data, salt=salt, n=1 << log_n, r=r, p=p, maxmem=memory, dklen=HASH_BYTES)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
