"""The strict parser of client URLs."""

from pathlib import Path

import pytest

import bedrockish
import bedrockish.dbapi
from bedrockish.api.url import Address, hide_password, parse_url
from bedrockish.client.credentials import _read_password
from bedrockish.errors import ConfigError, UnavailableError


def test_url_names_addresses_and_options() -> None:
    target = parse_url("bedrockish://a:1,[::1]:2,b/?read=strict&timeout=1.5&connect_timeout=2&cluster=c")
    assert target.addresses == (Address("a", 1), Address("::1", 2), Address("b", 7373))
    assert (target.read, target.timeout_s, target.connect_timeout_s, target.cluster) == ("strict", 1.5, 2.0, "c")
    assert str(target) == "bedrockish://a:1,[::1]:2,b:7373"
    assert parse_url(" bedrockish://a:1,a:1 ").addresses == (Address("a", 1),)
    assert parse_url("bedrockish://a?read=stale").read == "stale"


@pytest.mark.parametrize(
    "url",
    [
        "bedrockish://%2Fsrv%2FA.sqlite-sock,b:1/?timeout=3",
        "bedrockish://?host=/srv/A.sqlite-sock&host=b:1&timeout=3",
        "bedrockish://?host=/srv/A.sqlite-sock,b:1&timeout=3",
    ],
)
def test_url_names_the_unix_socket_of_a_node(url: str) -> None:
    target = parse_url(url)
    assert target.addresses == (Address("/srv/A.sqlite-sock", 0), Address("b", 1))
    assert target.local is None
    assert str(target) == "bedrockish://%2Fsrv%2FA.sqlite-sock,b:1"
    assert parse_url(str(target)).addresses == target.addresses


@pytest.mark.parametrize("url", ["bedrockish://srv%2FA.sqlite-sock", "bedrockish://%2Fsrv%00x", "bedrockish://%2fsrv,"])
def test_url_with_a_malformed_socket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


def test_url_names_user_password_certificate_and_choice() -> None:
    target = parse_url("bedrockish://ann:s%2Fe%40c:r:et@a:1,b:2/?ca=ca.pem&choice=nearest&discover=no")
    assert (target.user, target.password, target.ca) == ("ann", "s/e@c:r:et", "ca.pem")
    assert (target.choice, target.discover) == ("nearest", False)
    assert str(target) == "bedrockish://a:1,b:2"
    assert "r:et" not in repr(target)
    assert parse_url("bedrockish://ann@a").password is None


def test_a_password_may_be_in_a_file() -> None:
    target = parse_url("bedrockish://ann@a/?password_file=%2Frun%2Fsecrets%2Fann")
    assert (target.user, target.password, target.password_file) == ("ann", None, "/run/secrets/ann")
    for url in ("bedrockish://a/?password_file=x", "bedrockish://ann:secret@a/?password_file=x"):
        with pytest.raises(ConfigError, match="goes with a user who has no password in the URL"):
            parse_url(url)


def test_url_errors_never_contain_the_password() -> None:
    assert hide_password("bedrockish://ann:secret@a:1/?read=x") == "bedrockish://ann:***@a:1/?read=x"
    assert hide_password("bedrockish://[fe80::ab]/?ca=/a@b") == "bedrockish://[fe80::ab]/?ca=/a@b"
    for url in ("bedrokish://ann:secret@a", "bedrockish://ann:secret@a:x", "bedrockish://ann:secret@a/?x=1"):
        with pytest.raises(ConfigError) as caught:
            parse_url(url)
        assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        *("bedrockish:/ann:secret@a:1", "bedrockish:ann:secret@a/", "BEDROCKISH:/ann:secret@a", "ann:secret@a:1"),
        *(
            "http://ann:s/secret@a",
            "bedrockish://ann:s?secret@a",
            "http://ann:s?secret=1@a",
            "bedrockish://ann:5?secret@a",
        ),
    ],
)
def test_error_of_a_mistyped_url_never_contains_the_password(url: str) -> None:
    """A URL with one slash in place of two must not count as a path, because every error text names the path."""
    with pytest.raises(ConfigError) as caught:
        bedrockish.connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "bare"),
    [
        ("[a:1,b:2]", "a:1,b:2"),
        ("[a:1]", "a:1"),
        ("[[::1]:1,b:2]", "[::1]:1,b:2"),
        ("[::1]", "[::1]:7373"),
        ("[::1],[::2]", "[::1]:7373,[::2]:7373"),
    ],
)
def test_url_accepts_a_list_of_nodes_in_brackets(hosts: str, bare: str) -> None:
    assert ",".join(map(str, parse_url(f"bedrockish://{hosts}/").addresses)) == bare


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:7373", "is not a bedrockish URL"),
        ("http://localhost", "is not a bedrockish URL"),
        ("bedrockish://", "is not an address"),
        ("bedrockish://a,,b", "is not an address"),
        ("bedrockish://a:1:2", "is not an address"),
        ("bedrockish://[::1", "is not an address"),
        ("bedrockish://a:0", "is not a port"),
        ("bedrockish://a:", "is not a port"),
        ("bedrockish://@a", "has an @ but no user before it"),
        ("bedrockish://me:s/e@a", "must be written %2F"),
        ("bedrockish://me:s?e@a", "must be written %2F"),
        ("bedrockish://me:s?e=1@a", "must be written %2F"),
        ("bedrockish://me:7?e@a", "must be written %2F"),
        ("bedrockish://a/?choice=near", "did you mean 'nearest'?"),
        ("bedrockish://a/?discover=1", "is neither yes nor no"),
        ("bedrockish://a/?cert=x", "a certificate needs ca, cert and key"),
        ("bedrockish://a/shop", "has the path '/shop'"),
        ("bedrockish://a/?raed=session", "did you mean 'read'?"),
        ("bedrockish://a/?read=strong", "is not a read level"),
        ("bedrockish://a/?read", "is not a list of options"),
        ("bedrockish://a/?timeout=0", "should be a number of seconds"),
        ("bedrockish://a/?timeout=nan", "should be a number of seconds"),
        ("bedrockish://a/?timeout=1&timeout=2", "twice"),
    ],
)
def test_mistakes_in_a_url_are_named(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert says in caught.value.message


def test_url_options_may_name_further_nodes() -> None:
    """The form that every parser of URLs takes: one host with a port, the others as options."""
    from urllib.parse import urlparse

    url = "bedrockish://ann@a:1/?host=b:2&read=stale&host=c:3,d:4"
    target = parse_url(url)
    assert [str(one) for one in target.addresses] == ["a:1", "b:2", "c:3", "d:4"]
    assert (target.read, target.user, target.discover) == ("stale", "ann", True)
    assert (urlparse(url).hostname, urlparse(url).port) == ("a", 1)
    assert [str(one) for one in parse_url("bedrockish:///?host=b:2").addresses] == ["b:2"]
    with pytest.raises(ConfigError):
        parse_url("bedrockish://a:1/?host=")


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a\0b", "a\x1bb"])
def test_impossible_host_name_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_url(f"bedrockish://{host}:7373/")


def test_name_that_cannot_be_looked_up_is_unreachable() -> None:
    """The functions of the system raise a UnicodeError for it."""
    with pytest.raises(UnavailableError, match="no node can be reached at \N{GRINNING FACE}"):
        bedrockish.connect("bedrockish://\N{GRINNING FACE}\N{GRINNING FACE}:7373/?timeout=2&connect_timeout=1")


@pytest.mark.parametrize(
    "target",
    ["/tmp/a\0b", "bedrockish://a/?local=a%00b", "bedrockish://a/?ca=a%00b", "bedrockish://u@a/?password_file=a%00b"],
)
def test_path_with_a_nul_is_refused(target: str) -> None:
    """The functions of the system raise a ValueError for it."""
    with pytest.raises(ConfigError, match="is not a path, because it has a NUL character"):
        bedrockish.connect(target)
    with pytest.raises(bedrockish.dbapi.InterfaceError, match="NUL character"):
        bedrockish.dbapi.connect(target)


def test_password_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\r\n", encoding="utf-8-sig")
    assert _read_password(str(path)) == "secret"
