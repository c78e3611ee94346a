"""ATTACH and DETACH in the text of a statement. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.tokenizer import NotTokensError, tokens


class Order(NamedTuple):
    """An ATTACH or DETACH statement: the name of the database, and the path of its file (None for DETACH)."""

    name: str
    path: str | None


def order_of(sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Order | None:
    """Return the ATTACH or DETACH of a statement; None for other statements, or if the path is an expression.

    >>> order_of("ATTACH DATABASE 'a.sqlite' AS a"), order_of("DETACH a")
    (Order(name='a', path='a.sqlite'), Order(name='a', path=None))
    """
    word = first_word(sql)
    if word not in ("ATTACH", "DETACH"):
        return None
    try:
        words = [token for token in tokens(sql) if token.text != ";"][1:]
    except NotTokensError:
        return None
    if words and words[0].is_word("DATABASE"):
        del words[0]
    if word == "DETACH":
        return Order((words[0].name or "").lower(), None) if len(words) == 1 else None
    if len(words) != 3 or not words[1].is_word("AS"):
        return None
    path = words[0].name
    if words[0].kind == "param":
        path = params[0] if isinstance(params, (list, tuple)) and len(params) == 1 else None
    name = words[2].name
    return Order(name.lower(), path) if isinstance(path, str) and name else None
