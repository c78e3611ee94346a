"""A secret that all nodes of a cluster share, and the proof in a HELLO that its sender knows it.

The secret itself never travels. A proof covers who says it to whom, and each answer covers the question, so that a
dialler knows that nobody has played an old answer to it. This keeps strangers out; whoever can read or change what
travels is kept out only by TLS, see ``net.tls``. The construction is that of HMAC challenges, such as RFC 2195.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cbor2

from net.errors import Code, RefusedError
from net.events import Hello

NONCE, PROOF = "nonce", "proof"
NONCE_BYTES = 16


class Secret:
    """What the nodes of a cluster share.

    Args:
        text: the secret.
        draw: returns so many random bytes.
    """

    def __init__(self, text: str, draw: Callable[[int], bytes]) -> None:
        self._key = hashlib.sha256(b"bedrockish cluster secret\0" + text.encode()).digest()
        self._draw = draw

    def prove(self, hello: Hello, question: Hello | None = None) -> Hello:
        """Return a HELLO with a proof in it; ``question`` is the one that it answers."""
        nonce = self._draw(NONCE_BYTES)
        proof = self._proof(hello, nonce, _bytes(question.info, NONCE) if question is not None else b"")
        return replace(hello, info={**hello.info, NONCE: nonce, PROOF: proof})

    def is_proven(self, hello: Hello, question: Hello | None = None) -> bool:
        """Whether the sender of a HELLO knows the secret."""
        asked = _bytes(question.info, NONCE) if question is not None else b""
        return hmac.compare_digest(_bytes(hello.info, PROOF), self._proof(hello, _bytes(hello.info, NONCE), asked))

    def check(self, hello: Hello, question: Hello | None = None) -> None:
        """Make sure of it.

        Raises:
            RefusedError: there is no proof in the HELLO, or one for another secret.
        """
        if not self.is_proven(hello, question):
            what = "another cluster secret" if _bytes(hello.info, PROOF) else "no cluster secret"
            raise RefusedError(
                Code.AUTHENTICATION, f"{hello.node!r} has {what}; give all nodes of the cluster the same cluster_secret"
            )

    def _proof(self, hello: Hello, nonce: bytes, question: bytes) -> bytes:
        said = cbor2.dumps([hello.role, hello.node, hello.to, hello.cluster, nonce, question])
        return hmac.digest(self._key, said, "sha256")


def _bytes(info: Mapping[str, Any], name: str) -> bytes:
    value = info.get(name)
    return value if isinstance(value, bytes) else b""
