"""A tokenizer that cuts SQL text like SQLite's own, for the few cases in which the text itself must be read or changed.

It knows no grammar, only where tokens begin and end, so that a parenthesis in a string, or a keyword in a comment, is
not mistaken for one. ``tests/engine/test_tokens.py`` compares it with SQLite.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["word", "quoted", "string", "number", "blob", "param", "op"]
Cut = tuple[int, int, str]  # the start and end of a part of a text, and its replacement

# SQLite takes every character outside ASCII as part of a name, and a byte order mark before a token as a blank.
# The sets are negated, because ``re`` needs 15 ms to compile a set that reaches to the end of Unicode.
_NAME = r"[^\x00-\x23%-/:-@\[-^`{-\x7f]"  # letters, digits, _ and $
_FIRST = r"[^\x00-@\[-^`{-\x7f]"  # letters and _
_DIGITS = r"[0-9](?:_?[0-9])*"
_TOKEN = re.compile(
    rf"""
    (?P<blank> [ \t\n\f\r\ufeff]+ | --[^\n]* | /\*(?:.*?\*/|.+) )
  | (?P<blob> [xX]'(?:[0-9A-Fa-f]{{2}})*' )
  | (?P<string> '[^']*(?:''[^']*)*'(?!') )
  | (?P<quoted> "[^"]*(?:""[^"]*)*"(?!") | `[^`]*(?:``[^`]*)*`(?!`) | \[[^\]]*\] )
  | (?P<param> \?[0-9]* | [$@\#:](?:{_NAME}|::)*{_NAME}(?:::)*(?:\([^\s)]*\))? )
  | (?P<number> 0[xX][0-9A-Fa-f](?:_?[0-9A-Fa-f])*
    | (?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})? )
  | (?P<word> {_FIRST}{_NAME}* )
  | (?P<op> ->>?|\|\||==|<=|<>|<<|>=|>>|!=|[-+*/%=<>|&~;(),.] )
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME_CHARACTER = re.compile(_NAME)
_QUOTES = {'"': '"', "`": "`", "'": "'"}


class NotTokensError(ValueError):
    """Raised for a text that SQLite's tokenizer would refuse as well, or that this tokenizer does not understand."""


class SqlToken(NamedTuple):
    """A word, literal, parameter or operator in an SQL text."""

    # ``word`` (a name or keyword), ``quoted`` (a name in quotes of any kind), ``string``, ``number``, ``blob``,
    # ``param`` or ``op``.
    kind: Kind
    start: int  # position of its first character in the text
    end: int  # position after its last character
    text: str  # the text of the token

    def is_word(self, *keywords: str) -> bool:
        """Return whether the token is one of these keywords, given in upper case."""
        return self.kind == "word" and self.text.upper() in keywords

    @property
    def name(self) -> str | None:
        """The name for which the token stands, without quotes; None if the token cannot be a name."""
        if self.kind == "word":
            return self.text
        if self.kind not in ("quoted", "string"):
            return None
        quote = _QUOTES.get(self.text[0])
        inner = self.text[1:-1]
        return inner if quote is None else inner.replace(quote * 2, quote)


def tokens(sql: str) -> list[SqlToken]:
    """Return the tokens of a text, without blanks and comments.

    Raises:
        NotTokensError: a part of the text is not a token.
    """
    return list(walk(sql))


def walk(sql: str) -> Iterator[SqlToken]:
    """Yield the tokens of a text, as ``tokens`` returns them, one by one.

    Raises:
        NotTokensError: the next part of the text is not a token.
    """
    if "\0" in sql:
        raise NotTokensError("SQLite would read no further than the first NUL")
    at = 0
    for found in _TOKEN.finditer(sql):
        if found.start() != at:
            break
        kind, end = found.lastgroup, found.end()
        if kind == "number" and _NAME_CHARACTER.match(sql, end):
            raise NotTokensError(f"the number at character {at} runs into a name")
        if found[0] in ("x", "X") and sql.startswith("'", end):
            raise NotTokensError(f"the blob at character {at} is not pairs of hexadecimal digits")
        if kind == "param" and found[0][0] != "?" and sql.startswith("(", end):
            raise NotTokensError(f"the parameter at character {at} has a parenthesis that does not end")
        if kind != "blank":
            yield SqlToken(kind, at, end, found[0])  # type: ignore[arg-type]
        at = end
    if at < len(sql):
        raise NotTokensError(f"no token begins at character {at}")


def parameter_numbers(found: list[SqlToken]) -> dict[int, int]:
    """Return SQLite's number of each parameter, from 1, by the position of its token in the list."""
    numbers: dict[int, int] = {}
    names: dict[str, int] = {}
    highest = 0
    for place, token in enumerate(found):
        if token.kind != "param":
            continue
        if token.text == "?":
            number = highest + 1
        elif token.text[0] == "?":
            number = int(token.text[1:])
        else:
            number = names.setdefault(token.text, highest + 1)
        highest = max(highest, number)
        numbers[place] = number
    return numbers


def spliced(sql: str, cuts: Iterable[Cut]) -> str:
    """Return a text with the given parts replaced; they are in order and do not overlap."""
    parts: list[str] = []
    at = 0
    for start, end, text in cuts:
        assert start >= at
        parts += sql[at:start], text
        at = end
    return "".join([*parts, sql[at:]])


def with_queries(sql: str, found: list[SqlToken], queries: str, cuts: Iterable[Cut]) -> str:
    """Return a statement with ``queries`` first in its WITH, which it may have already, and with parts replaced."""
    if found[0].is_word("WITH"):
        begin, head = found[2 if found[1].is_word("RECURSIVE") else 1].start, f"{queries}, "
    else:
        begin, head = found[0].start, f"WITH {queries} "
    return spliced(sql, [(begin, begin, head), *cuts])
