"""Tokens, compared with SQLite: its tokens must be ours, and texts that it refuses must not pass."""

import apsw
import apsw.ext
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bedrockish.sqltext.tokenizer import NotTokensError, parameter_numbers, tokens


def texts(sql: str) -> list[str]:
    return [token.text for token in tokens(sql)]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        *(
            (text, "word")
            for text in ("a", "_a", "a1", "a$", "a_$9", "Ünïcode", "日本", "select", "x", "X", "a\ufeffb", "\x80")
        ),
        *((text, "quoted") for text in ('"a"', '"a""b"', '""', "`a`", "`a``b`", "[a]", "[a[b'\"]", "[]", '"a\nb"')),
        *((text, "string") for text in ("'a'", "'it''s'", "''", "''''", "'--'", "'/*'", "'a\nb'", "'('", "'\"'")),
        *((text, "blob") for text in ("x''", "X'0aFF'", "x'00'")),
        *(
            (text, "number")
            for text in ("0", "12", "1.", ".5", "1.5", "1e5", "1E+5", "1.e-5", ".5e3", "0x1F", "0XaB", "1_000", "0x1_F")
        ),
        *((text, "param") for text in ("?", "?1", "?007", ":a", "@a", "$a", "#a", ":1", "$a::b", "$a(b)", ":é", "$$")),
        *(
            (text, "op")
            for text in "( ) , ; . + - * / % = == < <= <> << > >= >> != | || & ~ -> ->>".split()  # noqa: SIM905
        ),
    ],
)
def test_tokenizer_returns_a_single_token_whole(sql: str, kind: str) -> None:
    (token,) = tokens(f" {sql} ")
    assert (token.kind, token.text, token.start, token.end) == (kind, sql, 1, 1 + len(sql))


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("a--b\nc", ["a", "c"]),
        ("a--b", ["a"]),
        ("a-b", ["a", "-", "b"]),
        ("a/*b*/c", ["a", "c"]),
        ("a/*/*/c", ["a", "c"]),
        ("a/**/c", ["a", "c"]),
        ("a/* never ends", ["a"]),
        ("a/*", ["a", "/", "*"]),
        ("a/b", ["a", "/", "b"]),
        ("\ufeffa\t\n\f\rb", ["a", "b"]),
        ("'a'b", ["'a'", "b"]),
        ("a'b'", ["a", "'b'"]),
        ("x'00'y", ["x'00'", "y"]),
        ("xx'00'", ["xx", "'00'"]),
        ("a.b.[c d]", ["a", ".", "b", ".", "[c d]"]),
        ("1.5.5", ["1.5", ".5"]),
        ("?1?", ["?1", "?"]),
        ("?a", ["?", "a"]),
        (":a:b", [":a", ":b"]),
        ("$a::b(c)d", ["$a::b(c)", "d"]),
        ("$a::", ["$a::"]),
        ("a->>'$.b'", ["a", "->>", "'$.b'"]),
        ("a<-1", ["a", "<", "-", "1"]),
        ("VALUES(?,?)", ["VALUES", "(", "?", ",", "?", ")"]),
    ],
)
def test_tokens_end_where_sqlite_ends_them(sql: str, found: list[str]) -> None:
    assert texts(sql) == found


@pytest.mark.parametrize(
    "sql",
    [
        *("'a", "'a''", '"a', "`a", "[a", "x'0'", "x'0g'", "X'", "1a", "1e", "0x", "1__0", "1_", "1.5e+"),
        *(":", "$", "@", "#", "$a(b c)", "$a(", "!", "^", "{", "\\", "\x0b", "\x01"),
    ],
)
def test_invalid_tokens_are_refused(sql: str) -> None:
    with pytest.raises(NotTokensError):
        tokens(sql)
    with pytest.raises(apsw.SQLError):
        apsw.Connection(":memory:").execute("SELECT " + sql).fetchall()


@pytest.mark.parametrize("sql", ["a\0b", "'\0'", "\0"])
def test_sqlite_reads_no_further_than_a_nul(sql: str) -> None:
    with pytest.raises(NotTokensError):
        tokens(sql)


@pytest.mark.parametrize(
    ("sql", "name"),
    [("a", "a"), ('"a""b"', 'a"b'), ("`a``b`", "a`b"), ("[a b]", "a b"), ("'it''s'", "it's"), ("1", None), ("?", None)],
)
def test_token_name_is_the_unquoted_name(sql: str, name: str | None) -> None:
    (token,) = tokens(sql)
    assert token.name == name


def test_keywords_are_bare_words_of_any_case() -> None:
    bare, quoted = tokens('insert "insert"')
    assert bare.is_word("REPLACE", "INSERT")
    assert not bare.is_word("REPLACE")
    assert not quoted.is_word("INSERT")


PARAMETERS = ["?", "?1", "?3", "?7", ":a", ":b", "@a", "$a", "?", ":1"]


@given(st.lists(st.sampled_from(PARAMETERS), min_size=1, max_size=8))
def test_parameters_have_the_numbers_that_sqlite_gives(chosen: list[str]) -> None:
    numbers = list(parameter_numbers(tokens("SELECT " + ", ".join(chosen))).values())
    db = apsw.Connection(":memory:")
    (row,) = db.execute("SELECT " + ", ".join(chosen), tuple(range(1, max(numbers) + 1))).fetchall()
    assert list(row) == numbers


WORDS = """
    1 1.5 .5 1e3 0x1f 1_0 'a' 'it''s' "n" `n` [n] x'41' n + - * / % || = == <> != < <= << >> ( ) , -> ->> ~ & | .
    -- /* */ ? ?2 :a $b NULL NOT IN IS BETWEEN AND CASE WHEN THEN END AS é ' \ufeff
"""
PARTS = st.sampled_from([*WORDS.split(), "\n"])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(PARTS, st.sampled_from(["", " ", "\n"])), max_size=7))
@example([("1", ""), ("/*", ""), ("*/", ""), ("+", ""), ("1", "")])
def test_tokens_separated_by_comments_mean_the_same_to_sqlite(parts: list[tuple[str, str]]) -> None:
    sql = "SELECT n, " + "".join(part + gap for part, gap in parts) + "\nFROM (SELECT 5 AS n)"
    db = apsw.Connection(":memory:")
    try:
        expected = db.execute(sql, (3, 4, 5, 6)[: _parameters(db, sql)]).fetchall()
    except apsw.Error:
        return
    apart = " /* ( ' */ ".join(texts(sql))
    assert db.execute(apart, (3, 4, 5, 6)[: _parameters(db, apart)]).fetchall() == expected


def _parameters(db: apsw.Connection, sql: str) -> int:
    return len(apsw.ext.query_info(db, sql).bindings_names)
