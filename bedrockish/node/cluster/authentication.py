"""The admission of clients by links and by HTTP: checks certificates, passwords and tokens.

A password is hashed in a thread, a few at a time. A keyed hash of a correct password is kept while the node runs, so
that further links and requests need no slow hash. An address with too many wrong passwords has to wait; a client with
the right password is still admitted from there.
"""

import hmac
import logging
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import trio

from bedrockish.api.url import Target
from bedrockish.client.credentials import ClientCredentials, credentials_of
from bedrockish.common.access_token import FOR_S_MAX, AccessToken, is_signed, make_token, read_token
from bedrockish.common.password_hash import PASSWORD_CHARACTERS_MAX, SALT_BYTES, PasswordHash, hash_password, read_hash
from bedrockish.config.config import Config
from bedrockish.config.security import Files
from bedrockish.engine.statements.rights import LOCAL, Access
from bedrockish.errors import AuthenticationError, ConfigError, UsageError
from bedrockish.node.cluster.identity import only_asks
from bedrockish_net.errors import Code, RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.handshake import host_of, is_local
from bedrockish_net.tls import (
    CertificateError,
    certificate_holders,
    check_revoked,
    dial_context,
    has_certificate,
    listen_context,
    read_revoked,
    why_refused,
)
from bedrockish_net.x509 import read_certificate

logger = logging.getLogger(__name__)

LOOK_S = 30.0  # seconds between two checks of this node's own certificate
TRIES_MAX = 10  # most wrong passwords of one user from one address in WINDOW_S
ADDRESS_TRIES_MAX = 100  # most wrong passwords of all users from one address in WINDOW_S
USER_CHARACTERS_MAX = 100
WINDOW_S = 60.0
ADDRESSES_MAX = 10_000
AT_ONCE = 2
USER, PASSWORD, GIVEN_TOKEN = "user", "password", "token"


class Credentials:
    """A node's TLS credentials, and the checks of peers' credentials; ``reload`` reads the files again.

    Raises:
        ConfigError: a file cannot be read.
    """

    def __init__(self, config: Config) -> None:
        self._node = config.node
        self._files = config.security.files(config.node) if config.security.encrypts else None
        # Whether a client may have a password in place of a certificate; a change takes effect at the next ``reload``.
        self.takes_passwords = bool(config.users)
        self.revoked: frozenset[int] = frozenset()  # serial numbers of the revoked certificates
        self.dial_context: ssl.SSLContext | None = None  # for links that the node dials; None if TLS is off
        self.listen_context: ssl.SSLContext | None = None  # for links that the node accepts; None if TLS is off
        self.reads = 0  # how often the files were read
        # When the node's certificate and its authority's expire: file -> seconds since 1970.
        self.ends: dict[str, float] = {}
        self._fault, self._looked_s = "", 0.0
        self.reload()

    def reload(self) -> None:
        """Read the files again; if one of them cannot be used, nothing is changed.

        The first call only logs that other nodes would refuse the certificate: a later date or new files may help.

        Raises:
            ConfigError: a file cannot be used, or other nodes accept the present certificate, but not the new one.
        """
        files = self._files
        if files is None:
            return
        paths = (files.ca, files.certificate, files.key)
        try:
            dial, listen = dial_context(*paths), listen_context(*paths, optional=self.takes_passwords)
            revoked = _read_revoked(files)
            ends = {path: _end_of(path) for path in (files.certificate, files.ca)}
        except CertificateError as error:
            raise ConfigError(f"security: {error}") from error
        fault = self._judge(files, dial, listen, revoked)
        # A list that revokes this node's own certificate takes effect, too: it may also revoke stolen certificates.
        if self.reads and not self.fault() and (unfit := self._judge(files, dial, listen, frozenset())):
            raise ConfigError(f"security: {unfit}")
        if fault:
            logger.error("security: %s; without a valid certificate no link can be opened", fault)
        if self.dial_context is not None and _authorities(dial).isdisjoint(_authorities(self.dial_context)):
            logger.warning(
                "security: %s has none of its earlier authorities; open links stay, and the next link to each node or "
                "client whose certificate is of one of these is refused: exchange theirs, too, or put an earlier one "
                "back and send SIGHUP again",
                files.ca,
            )
        self._fault, self._looked_s = fault, time.monotonic()
        self.dial_context, self.listen_context = dial, listen
        self.revoked, self.ends, self.reads = revoked, ends, self.reads + 1

    def fault(self) -> str:
        """Return why other nodes refuse this node's certificate; empty if they accept it, and without TLS."""
        files, now_s = self._files, time.monotonic()
        if files is None or self.dial_context is None or self.listen_context is None:
            return ""
        if now_s - self._looked_s > LOOK_S:  # the answer changes with the date
            self._fault = self._judge(files, self.dial_context, self.listen_context, self.revoked)
            self._looked_s = now_s
        return self._fault

    def _judge(self, files: Files, dial: ssl.SSLContext, listen: ssl.SSLContext, revoked: frozenset[int]) -> str:
        why = why_refused(dial, listen, self._node, revoked)
        return f"every node that trusts {files.ca} refuses {files.certificate}: {why}" if why else ""

    def trust(self, stream: trio.abc.Stream) -> None:
        """Check that the certificate of the other end of a stream is not revoked.

        Raises:
            RefusedError: the certificate is revoked.
        """
        check_revoked(stream, self.revoked)

    def entry(self, target: Target | None = None) -> ClientCredentials:
        """Return the credentials with which this node connects as a client: its own, and the user of a URL, if any.

        Raises:
            ConfigError: the URL names a file that cannot be used.
        """
        given = ClientCredentials() if target is None else credentials_of(target)
        return replace(given, ssl_context=given.ssl_context or self.dial_context)


def _authorities(context: ssl.SSLContext) -> set[bytes]:
    return set(context.get_ca_certs(binary_form=True))


def _read_revoked(files: Files) -> frozenset[int]:
    path = Path(files.revoked)
    if not files.revoked or not (files.must_have_list or path.exists()):
        return frozenset()
    try:
        return read_revoked(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"the list of revoked certificates {path} cannot be read: {error}") from error
    except CertificateError as error:
        raise CertificateError(f"{path}: {error}") from error


def _end_of(path: str) -> float:
    try:
        return read_certificate(Path(path).read_text(encoding="utf-8"))[1].timestamp()
    except (OSError, ValueError) as error:
        raise CertificateError(f"{path} is not a certificate: {error}") from error


class Gate:
    """Decides which clients a node admits, by their certificates, passwords and tokens."""

    def __init__(
        self,
        config: Config,  # has the configured users
        credentials: Credentials,
        access: Access,  # has the users of the cluster
        # Returns the id of the cluster, and its clock's time in milliseconds since 1970.
        moment: Callable[[], tuple[str, int]] = lambda: ("", 0),
    ) -> None:
        self._moment = moment
        self._let_in: WeakKeyDictionary[trio.abc.Stream, str] = WeakKeyDictionary()  # the user of each client
        self._tokens: WeakKeyDictionary[trio.abc.Stream, str] = WeakKeyDictionary()  # the tokens of clients
        self._config, self._access = config.users, access
        access.bootstrap = frozenset(config.users)
        self._credentials = credentials
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}
        # The hash for unknown names, so that the refusal of such a name takes as long as that of a wrong password.
        self._nobody = hash_password("nobody", bytes(SALT_BYTES))
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    @property
    def users(self) -> bool:
        """Whether the configuration or the cluster has users, so that clients need credentials."""
        return bool(self._config or self._access.users)

    def _hash_of(self, user: str) -> PasswordHash | None:
        if user not in self._access.users:
            return self._config.get(user)
        said = self._access.users[user]
        return None if said is None else read_hash(said.secret)

    async def admit(self, stream: trio.abc.Stream, hello: Hello) -> None:
        """Admit a link of a peer, which the mesh has checked, or of a client.

        A client may have a certificate, a password or a token, or only ask for the cluster's id.

        Raises:
            RefusedError: the client has none of these, or a wrong one.
        """
        if is_local(stream):  # access to the socket is access to the file: naming a user only narrows the rights
            named = hello.info.get(USER)
            self._let_in[stream] = named[:USER_CHARACTERS_MAX] if isinstance(named, str) else LOCAL
            return
        if hello.role == "peer" or not self.users or has_certificate(stream):
            return
        if only_asks(hello) and self._credentials.dial_context is None:
            return  # without TLS, a new member on this machine has no credentials
        user, password, token = (hello.info.get(name) for name in (USER, PASSWORD, GIVEN_TOKEN))
        if isinstance(user, str) and isinstance(token, str):
            try:
                self._let_in[stream] = self.admit_token(token, _address(stream), user)
            except AuthenticationError as error:
                raise RefusedError(Code.AUTHENTICATION, error.message) from error
            self._tokens[stream] = token
            return
        if not isinstance(user, str) or not isinstance(password, str):
            raise RefusedError(
                Code.AUTHENTICATION,
                "this node requires a user, and a password or a token: bedrockish://user:password@host:port",
            )
        if why := await self.judge(user, password, _address(stream)):
            raise RefusedError(Code.AUTHENTICATION, why)
        self._let_in[stream] = user

    def caller(self, stream: trio.abc.Stream) -> str:
        """Return the name of an admitted client: its certificate's, else its user; empty if neither is required."""
        names = certificate_holders(stream)
        if names:
            node = {one.lower(): one for one in self._access.nodes}
            member = next((node[name.lower()] for name in names if name.lower() in node), None)
            if member is not None:
                return f"node:{member}"
            name = names[0] if names[0].startswith("client:") else f"certificate:{names[0]}"
            return name[:USER_CHARACTERS_MAX]
        return self._let_in.get(stream, "")  # a node whose clients need no user has not checked the name in a HELLO

    def comes_with_token(self, stream: trio.abc.Stream) -> bool:
        """Return whether a client was admitted by a token, which expires."""
        return stream in self._tokens

    def why_out(self, stream: trio.abc.Stream) -> str:
        """Return why a client with a token has to be disconnected; empty if it may stay."""
        token = self._tokens.get(stream)
        if token is None:
            return ""
        try:
            self.admit_token(token, "")
        except AuthenticationError as error:
            return error.message
        return ""

    async def order_token(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make a token for a user of the cluster, by an operator's order.

        Raises:
            UsageError: the user does not exist, or the time is too long.
        """
        user, seconds = asked.get("user"), asked.get("for_s")
        said = self._access.users.get(user) if isinstance(user, str) else None
        if said is None or not isinstance(user, str):
            raise UsageError(
                f"the cluster has no user {user!r:.100}, and only its own users have tokens; see 'bedrockish user list'"
            )
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= FOR_S_MAX:
            raise UsageError(
                f"a token is good for up to {FOR_S_MAX / 86_400:.0f} days, not for {seconds!r:.100} seconds"
            )
        cluster_id, now_ms = self._moment()
        token = AccessToken(user, now_ms + int(1000 * seconds))
        return {"token": make_token(token, said.secret, cluster_id), "user": user, "until_ms": token.until_ms}

    def admit_token(self, given: str, address: str, user: str | None = None) -> str:
        """Check a token, and return its user.

        Args:
            address: the client's address, for the log; empty for a token that was checked before.
            user: the user that the client names; None: the token's.

        Raises:
            AuthenticationError: the token is not valid.
        """
        token = read_token(given)
        said = self._access.users.get(token.user) if token is not None else None
        cluster_id, now_ms = self._moment()
        if token is None or said is None or not is_signed(given, said.secret, cluster_id):
            if address:
                logger.warning("wrong token from %s", address)
            raise AuthenticationError(
                "this token is not valid here: it is malformed, or of another cluster, or its user was removed or got "
                "another password"
            )
        if now_ms >= token.until_ms:
            raise AuthenticationError(
                f"the token of {token.user} has ended; make another one with 'bedrockish user token URL {token.user}'"
            )
        if user not in (None, token.user):
            raise AuthenticationError(f"this token is {token.user}'s, and not of the user {user!r:.100}")
        return token.user

    async def judge(self, user: str, password: str, address: str) -> str:
        """Return why a user is not admitted; empty if the user is admitted.

        Args:
            password: the password given for that user, or a token.
        """
        if read_token(password) is not None:
            try:
                self.admit_token(password, address, user)
            except AuthenticationError as error:
                return error.message
            return ""
        found = self._hash_of(user)
        kept = found or self._nobody
        # The text has the slow hash, so that the keyed hash of an earlier password does not match.
        text = f"{kept}:{len(user)}:{user}{password}"
        seal = hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), "sha256")
        if found is not None and hmac.compare_digest(self._known.get(user, b""), seal):
            return ""
        now = trio.current_time()
        counted = ((f"{address} {user[:USER_CHARACTERS_MAX]}", TRIES_MAX), (address, ADDRESS_TRIES_MAX))
        for name, tries_max in counted:
            wrong = [moment for moment in self._wrong.get(name, ()) if moment > now - WINDOW_S]
            if len(wrong) >= tries_max:
                whose = f" of user {user[:USER_CHARACTERS_MAX]!r}" if tries_max == TRIES_MAX else ""
                return f"too many wrong passwords{whose} from {address}; wait {WINDOW_S:.0f} s and try again"
        # A try is counted before its outcome is known, so that the limits also hold for tries at the same time.
        for name, _ in counted:
            recent = [moment for moment in self._wrong.get(name, ()) if moment > now - WINDOW_S]
            self._wrong[name] = [*recent, now]
            self._wrong.move_to_end(name)
        while len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        fits = len(password) <= PASSWORD_CHARACTERS_MAX and await trio.to_thread.run_sync(
            kept.fits, password, limiter=self._limiter
        )
        if not fits or found is None:
            logger.warning("wrong user or password from %s", address)
            return "wrong user or password"
        self._known[user] = seal
        for name, _ in counted:
            with_this = self._wrong.get(name, [])
            if now in with_this:
                with_this.remove(now)
        return ""


def _address(stream: trio.abc.Stream) -> str:
    return host_of(stream) or "a caller that is gone"
