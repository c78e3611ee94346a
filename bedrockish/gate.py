"""The gate of a node: who may come in as a client, and with which password. For links and for HTTP alike.

A password is hashed in a thread, a few at a time. One that has fitted is remembered, as a keyed hash, while the node
runs, so that each further link and request costs nothing. Whoever is wrong too often from one address has to wait; who
knows the password is let in meanwhile.
"""

import hmac
import logging
import secrets
import ssl
from collections import OrderedDict
from typing import Any

import trio

from bedrockish.addresses import Target
from bedrockish.client.entry import Entry, entry_of
from bedrockish.config import Config
from bedrockish.errors import ConfigError
from bedrockish.passwords import PASSWORD_CHARACTERS_MAX, SALT_BYTES, hash_password
from net.errors import Code, RefusedError
from net.events import Hello
from net.secret import Secret
from net.tls import CertificateError, dial_context, has_certificate, listen_context

logger = logging.getLogger(__name__)

TRIES_MAX = 10  # wrong passwords from one address …
WINDOW_S = 60.0  # … in so many seconds
ADDRESSES_MAX = 10_000
AT_ONCE = 2
USER, PASSWORD = "user", "password"


class Credentials:
    """What a node shows to others, and asks of them: TLS and the cluster's secret.

    Raises:
        ConfigError: a file cannot be read.
    """

    def __init__(self, config: Config) -> None:
        security = config.security
        self.secret = Secret(security.cluster_secret, secrets.token_bytes) if security.cluster_secret else None
        self.dial_context: ssl.SSLContext | None = None
        self.listen_context: ssl.SSLContext | None = None
        if security.tls:
            files = (security.tls_ca, security.tls_certificate, security.tls_key)
            try:
                self.dial_context = dial_context(*files)
                self.listen_context = listen_context(*files, optional=bool(config.users))
            except CertificateError as error:
                raise ConfigError(f"security: {error}") from error

    def entry(self, target: Target | None = None) -> Entry:
        """Return how this node comes in where it asks like a client: as itself, and as the user of a URL if it has one.

        Raises:
            ConfigError: the URL names a file that cannot be used.
        """
        given = Entry() if target is None else entry_of(target)
        return Entry(given.ssl_context or self.dial_context, self.secret, given.info)


class Gate:
    """Lets clients in.

    Args:
        config: has the users.
        credentials: those of the node.
    """

    def __init__(self, config: Config, credentials: Credentials) -> None:
        self.users = config.users
        self._credentials = credentials
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}
        self._nobody = hash_password("nobody", bytes(SALT_BYTES))  # an unknown name takes as long as a known one
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    async def admit(self, stream: trio.abc.Stream, hello: Hello) -> None:
        """Let a link in: of a peer, whom the mesh has judged, or of a client.

        A client may have a certificate, or the cluster's secret (another node asks like a client), or a password.

        Raises:
            RefusedError: it has none of them.
        """
        if hello.role == "peer" or not self.users or has_certificate(stream):
            return
        secret = self._credentials.secret
        if secret is not None and secret.is_proven(hello):
            return
        user, password = hello.info.get(USER), hello.info.get(PASSWORD)
        if not isinstance(user, str) or not isinstance(password, str):
            raise RefusedError(
                Code.AUTHENTICATION, "this node asks for a user and a password: bedrockish://user:password@host:port"
            )
        if why := await self.judge(user, password, _address(stream)):
            raise RefusedError(Code.AUTHENTICATION, why)

    async def judge(self, user: str, password: str, address: str) -> str:
        """Return why a user may not come in, or nothing.

        Args:
            user: a name.
            password: what was given as that user's.
            address: where it comes from.
        """
        seal = hmac.digest(self._key, f"{len(user)}:{user}{password}".encode("utf-8", "surrogatepass"), "sha256")
        if hmac.compare_digest(self._known.get(user, b""), seal):
            return ""
        now = trio.current_time()
        wrong = [moment for moment in self._wrong.get(address, ()) if moment > now - WINDOW_S]
        if len(wrong) >= TRIES_MAX:
            return f"too many wrong passwords from {address}; wait {WINDOW_S:.0f} s and try again"
        kept = self.users.get(user, self._nobody)
        # Counted before it is known, so that many tries at once are as few as many in a row.
        self._wrong[address] = [*wrong, now]
        self._wrong.move_to_end(address)
        while len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        fits = len(password) <= PASSWORD_CHARACTERS_MAX and await trio.to_thread.run_sync(
            kept.fits, password, limiter=self._limiter
        )
        if not fits or user not in self.users:
            logger.warning("wrong user or password from %s", address)
            return "wrong user or password"
        self._known[user] = seal
        with_this = self._wrong.get(address, [])
        if now in with_this:
            with_this.remove(now)
        return ""


def _address(stream: trio.abc.Stream) -> str:
    raw: Any = stream
    while isinstance(raw, trio.SSLStream):
        raw = raw.transport_stream
    try:
        return str(raw.socket.getpeername()[0])
    except (AttributeError, OSError):
        return "a caller that is gone"
