"""Client URLs: read strictly."""

import pytest

from bedrockish.addresses import Address, parse_url
from bedrockish.errors import ConfigError


def test_url_in_full() -> None:
    target = parse_url("bedrockish://a:1,[::1]:2,b/?read=strict&timeout=1.5&connect_timeout=2&cluster=c")
    assert target.addresses == (Address("a", 1), Address("::1", 2), Address("b", 7373))
    assert (target.read, target.timeout_s, target.connect_timeout_s, target.cluster) == ("strict", 1.5, 2.0, "c")
    assert str(target) == "bedrockish://a:1,[::1]:2,b:7373"
    assert parse_url(" bedrockish://a:1,a:1 ").addresses == (Address("a", 1),)
    assert parse_url("bedrockish://a?read=stale").read == "stale"


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
def test_a_list_of_nodes_may_have_brackets_for_those_who_read_urls_first(hosts: str, bare: str) -> None:
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
        ("bedrockish://me@a", "nodes know no users"),
        ("bedrockish://a/shop", "has the path '/shop'"),
        ("bedrockish://a/?raed=session", "did you mean 'read'?"),
        ("bedrockish://a/?read=strong", "is no read level"),
        ("bedrockish://a/?read", "is not a list of options"),
        ("bedrockish://a/?timeout=0", "should be a number of seconds"),
        ("bedrockish://a/?timeout=nan", "should be a number of seconds"),
        ("bedrockish://a/?timeout=1&timeout=2", "twice"),
    ],
)
def test_mistakes(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert says in caught.value.message
