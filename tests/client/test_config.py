"""Configuration: sources of values, and the message for each mistake."""

from pathlib import Path

import pytest

from bedrockish.api.url import Address
from bedrockish.common.password_hash import hash_password
from bedrockish.config.config import Config, build, keys, warnings
from bedrockish.errors import ConfigError

MINIMAL = 'node = "A"\ndatabase = "a.db"\n'
THREE = MINIMAL + '[peers]\nA = "127.0.0.1:1"\nB = "localhost:2"\nC = "[::1]:3"\n'


def wrong(text: str, **others: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        build(text=text, file="f.toml", **others)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_omitted_configuration_keys_have_their_defaults() -> None:
    found = build(text=THREE + "[timings]\nheartbeat_ms = 50\n[log]\nlevel = 'debug'\n")
    assert (found.node, found.cluster, found.listen) == ("A", "bedrockish", Address("127.0.0.1", 7373))
    assert found.peers == {"A": Address("127.0.0.1", 1), "B": Address("localhost", 2), "C": Address("::1", 3)}
    assert (found.timings.heartbeat_ms, found.timings.suspicion_ms, found.log.level) == (50, 1000, "debug")


def test_flags_beat_environment_beats_file() -> None:
    environment = {
        "BEDROCKISH_NODE": "E",
        "BEDROCKISH_HEARTBEAT_MS": "60",
        "BEDROCKISH_JOURNAL_PRUNE": "no",
        "HOME": "x",
    }
    found = build(text=MINIMAL, environment=environment, flags={"heartbeat_ms": "70"})
    assert (found.node, found.timings.heartbeat_ms, found.journal.journal_prune) == ("E", 70, False)


def test_configuration_by_flags_and_environment_needs_no_file() -> None:
    flags = {"node": "A", "database": "a.db", "listen": "0.0.0.0:1", "tls": "certs", "peers": "A=h:1, B=h:2"}
    found = build(flags=flags)
    assert isinstance(found, Config)
    assert found.peers == {"A": Address("h", 1), "B": Address("h", 2)}


def test_node_is_always_among_its_own_peers() -> None:
    assert build(text=MINIMAL + '[peers]\nB = "[::1]:2"').peers == {
        "A": Address("127.0.0.1", 7373),
        "B": Address("::1", 2),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("node = A", "line 1, column 8); a text value needs quotes"),
        (MINIMAL + "node = 'B'", "write each key and section once"),
        (MINIMAL + "[log]\nslow_ms = 1\n[log]\n", "write each key and section once"),
        ('node = "A"\ndatabase = "a\\u0000b"', r"f.toml: database: 'a\x00b' is not a path, because it has a NUL"),
        (MINIMAL + '[security]\ntls = "a\\u0000b"', r"f.toml: security.tls: 'a\x00b' is not a path"),
        (MINIMAL + "[peers]\nB = 'a..b:7400'", "f.toml: peers.B: 'a..b:7400' is not an address"),
        (MINIMAL + f"[peers]\nB = '{'a' * 64}.example:7400'", "is not an address"),
        ('database = "x"', "node is missing"),
        ('node = "A"', "database is missing"),
        ('node = "1A"\ndatabase = "x"', "f.toml: node: '1A' is not a name"),
        ('node = "A123456789012345x"\ndatabase = "x"', "is not a name"),
        ("node = 7\ndatabase = 'x'", "f.toml: node: 7 is not a name"),
        ("node = 'A'\ndatabase = 7", "f.toml: database: 7 is not a path"),
        (MINIMAL + "lisen = 'x:1'", "f.toml: lisen: unknown key; did you mean 'listen'?"),
        (
            MINIMAL + "[clock]\nenable_cluster_clock = true",
            "f.toml: clock.enable_cluster_clock: unknown key; releases before 0.3 had it; remove the line",
        ),
        (
            MINIMAL + "[limits]\ncommand_ms_max = 5",
            "f.toml: limits.command_ms_max: unknown key; releases before 0.3 had it; remove the line",
        ),
        (MINIMAL + "heartbeat_ms = 5", "f.toml: heartbeat_ms: unknown key; it belongs into [timings]"),
        (MINIMAL + "[timings]\nnode = 'A'", "f.toml: timings.node: unknown key; it belongs to the top"),
        (MINIMAL + "[timings]\nheartbeat = 5", "f.toml: timings.heartbeat: unknown key; did you mean 'heartbeat_ms'?"),
        (MINIMAL + "[tmings]\nheartbeat_ms = 5", "f.toml: tmings: unknown key"),
        (MINIMAL + "timings = 5", "f.toml: timings is a section; write [timings]"),
        (MINIMAL + "[timings]\nheartbeat_ms = '5'", "f.toml: timings.heartbeat_ms: '5' is not a whole number from 1"),
        (MINIMAL + "[timings]\nheartbeat_ms = 0", "0 is not a whole number from 1"),
        (MINIMAL + "[timings]\nheartbeat_ms = true", "True is not a whole number from 1"),
        (MINIMAL + "[timings]\nheartbeat_ms = 1000", "heartbeat_ms (1000) must be below suspicion_ms (1000)"),
        (MINIMAL + "[timings]\nclosing_lag_ms = 50", "closing_lag_ms_min (100) must be below closing_lag_ms (50)"),
        (
            MINIMAL + "[timings]\nconflict_window_ms = 400",
            "closing_lag_ms (500) must be below conflict_window_ms (400)",
        ),
        (
            MINIMAL + "[journal]\njournal_prune = 'yes'",
            "f.toml: journal.journal_prune: 'yes' is neither true nor false",
        ),
        (MINIMAL + "[log]\nlevel = 'inof'", "f.toml: log.level: 'inof' is not a log level; did you mean 'info'?"),
        (MINIMAL + "listen = 'host:x'", "f.toml: listen: 'x' in 'host:x' is not a port"),
        (MINIMAL + "listen = 'host:70000'", "is not a port"),
        (MINIMAL + "listen = 'a b:1'", "is not an address"),
        (MINIMAL + "listen = 7", "f.toml: listen: 7 is not an address"),
        (MINIMAL + "peers = 'B=h:1'", "write a section [peers]"),
        (MINIMAL + "[peers]\nB = 7", "f.toml: peers.B: 7 is not an address"),
        (MINIMAL + "[peers]\n'B!' = 'h:1'", "'B!' is not a name"),
        (MINIMAL + "[peers]\nB = 'h:1'\nC = 'h:1'", "B and C have the same address h:1"),
        (MINIMAL + "listen = '0.0.0.0:7'\n[peers]\nB = 'h:1'", "the others cannot reach A at 0.0.0.0:7"),
    ],
)
def test_mistakes_in_the_file_are_named(text: str, says: str) -> None:
    assert says in wrong(text)


HASH = str(hash_password("x", bytes(16)))
OUTSIDE = MINIMAL + "listen = 'host1:1'\n"
TLS = "[security]\ntls = 'certs'\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            OUTSIDE,
            "listen: host1:1 is reached from other machines, which takes TLS: run 'bedrockish tls certs A=host1'",
        ),
        (OUTSIDE, "start it with 'bedrockish serve --set tls=certs'"),
        (OUTSIDE + f"[users]\nann = '{HASH}'", "listen: host1:1 is reached from other machines, which takes TLS"),
        (OUTSIDE + "[security]\ninsecure = true", "listen: host1:1 is reached from other machines, which takes TLS"),
        (MINIMAL + "[peers]\nB = 'host2:1'", "peers.B: host2:1 is reached from other machines, which takes TLS"),
        (MINIMAL + "listen = '0.0.0.0:1'\n[peers]\nA = '[::1]:1'", "run 'bedrockish tls certs A=::1' once"),
        (MINIMAL + "listen = '0.0.0.0:1'", "run 'bedrockish tls certs A=HOST' once"),
        (MINIMAL + "[security]\ntls_revoked = 'x'", "there is no TLS; set tls"),
        (MINIMAL + f"http = '0.0.0.0:1'\n[users]\nann = '{HASH}'", "without TLS passwords would travel in clear text"),
        (
            MINIMAL + "http = '0.0.0.0:1'\nhttp_token = 'ABCDEFGHIJKLMNOP'",
            "without TLS passwords would travel in clear text",
        ),
        (MINIMAL + "http = '0.0.0.0:1'", "http: 0.0.0.0:1 can be reached from other machines"),
        (MINIMAL + "[users]\nann = 'hunter2'", "f.toml: users.ann: this is not the hash of a password"),
        (MINIMAL + "[users]\nann = 7", "f.toml: users.ann: this is not the hash of a password"),
        (MINIMAL + f"[users]\n'a b' = '{HASH}'", "'a b' is not a user's name"),
        (MINIMAL + "users = 7", "write a section [users]"),
        (MINIMAL + "[security]\ntls_ca = 'ca.pem'", "tls_certificate and tls_key is missing"),
        (MINIMAL + "[security]\ninsecur = true", "did you mean 'insecure'?"),
    ],
)
def test_mistakes_in_security_are_named_without_secrets(text: str, says: str) -> None:
    said = wrong(text)
    assert says in said
    assert "hunter2" not in said


def test_users_and_tls_suffice_to_listen_everywhere() -> None:
    users = f"[users]\nann = '{HASH}'\n"
    found = build(text=OUTSIDE + "http = '0.0.0.0:2'\n" + users + TLS)
    assert str(found.users["ann"]) == HASH
    assert warnings(found) == []
    files = found.security.files("A")
    assert (files.ca, files.certificate, files.key) == ("certs/ca.pem", "certs/A.pem", "certs/A-key.pem")
    assert (files.revoked, files.must_have_list) == ("certs/revoked.txt", False)
    tls = "[security]\ntls_ca = 'a'\ntls_certificate = 'b'\ntls_key = 'c'\n"
    found = build(text=OUTSIDE + tls)
    assert warnings(found) == []
    files = found.security.files("A")
    assert (files.ca, files.certificate, files.key, files.revoked) == ("a", "b", "c", "")
    assert build(text=OUTSIDE + tls + "tls_revoked = 'd'").security.files("A").must_have_list
    assert "insecure is set" in warnings(build(text=MINIMAL + "http = '0.0.0.0:1'\n[security]\ninsecure = true"))[0]
    assert warnings(build(text=MINIMAL + "http = '[::1]:1'")) == []
    environment = {"BEDROCKISH_USERS": f"ann={HASH}, bob={HASH}"}
    assert list(build(text=MINIMAL, environment=environment).users) == ["ann", "bob"]


def test_mistakes_in_variables_and_flags_are_named() -> None:
    assert "did you mean BEDROCKISH_HEARTBEAT_MS?" in wrong(MINIMAL, environment={"BEDROCKISH_HEARBEAT_MS": "1"})
    assert "BEDROCKISH_LISTEN: 'x' in 'h:x'" in wrong(MINIMAL, environment={"BEDROCKISH_LISTEN": "h:x"})
    assert "--set heartbeat: unknown key" in wrong(MINIMAL, flags={"heartbeat": "1"})
    assert "--set heartbeat_ms: -5 is" in wrong(MINIMAL, flags={"heartbeat_ms": "-5"})
    assert "--peer: 'B' should be NODE=host:port" in wrong(MINIMAL, flags={"peers": "B"})
    build(text=MINIMAL, environment={"BEDROCKISH_SERVICE_HOST": "10.0.0.1", "BEDROCKISH_URL": "x"})


@pytest.mark.parametrize("key", keys())
def test_any_wrong_value_is_an_error_that_names_its_key(key: str) -> None:
    """The wrong values include a number of thousands of digits and a value that is too long for a log line."""
    section = f"[{keys()[key]}]\n" if keys()[key] else ""
    rest = "\n".join(line for line in MINIMAL.splitlines() if not line.startswith(key)) + "\n"
    values = ["-1.5", "nan", "[1]", "[[[]]]", "1979-05-27", "07:32:00", f"0x{'F' * 6_000}", f"[0x{'F' * 6_000}]"]
    for value in values:
        said = wrong(f"{rest}{section}{key} = {value}")
        assert said.startswith("f.toml: ")
        assert key in said
        assert len(said) < 500
    for value in ("1" * 5_000, "[" * 5_000):
        assert "no key takes such a value" in wrong(f"{rest}{section}{key} = {value}")


@pytest.mark.parametrize("value", ["1__0", "_1", "1_", "9" * 5_000, "1" * 14, "-9" + "9" * 14, "5s", "1e3", "\u0664"])
@pytest.mark.parametrize("key", ["heartbeat_ms", "slow_ms", "wall_offset_ms"])
def test_setting_that_is_not_a_number_is_refused(key: str, value: str) -> None:
    for given in ({"flags": {key: value}}, {"environment": {f"BEDROCKISH_{key.upper()}": value}}):
        said = wrong(MINIMAL, **given)
        assert "is not a whole number from" in said
        assert "to 1099511627775; write one, such as" in said
        assert len(said) < 400


def test_error_names_a_flag_as_typed() -> None:
    assert wrong(MINIMAL, flags={"http_token": ""}).startswith("--set http_token: ")
    assert wrong(MINIMAL, flags={"users": "ann"}).startswith("--set users.ann: ")
    assert wrong(MINIMAL, flags={"users": f"ann={HASH},ann={HASH}"}) == (
        "--set users: a user is named twice; name each once"
    )


def test_every_configuration_key_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert not [key for key in keys() if f"`{key}`" not in page]
