"""``bedrockish password`` and ``bedrockish tls``: the passwords and certificates that keep strangers out of a node."""

import re
import secrets
import sys
from pathlib import Path

import click

from bedrockish.common.durable_files import add_lines
from bedrockish.common.password_hash import SALT_BYTES, USER, hash_password
from bedrockish.config.security import REVOKED
from bedrockish.errors import ConfigError, UsageError
from bedrockish_net.tls import CertificateError, read_revoked
from bedrockish_net.x509 import read_certificate

SERIAL = re.compile("[0-9A-Fa-f]{8,40}")

days_option = click.option(
    "--days",
    default=1825,
    show_default=True,
    type=click.IntRange(1, 36500),
    help="Days for which the certificates are valid.",
)


@click.command()
@click.argument("user")
def password(user: str) -> None:
    """Ask for the password of USER and print the line for the section [users] of each node's configuration.

    In a pipe, the password is the first line of standard input. Only its hash is printed.
    """
    if not USER.fullmatch(user):
        raise UsageError(
            f"{user!r} is not a user's name; write a letter and then up to 63 letters, digits or one of _.-"
        )
    click.echo(f'{user if "." not in user else repr(user)} = "{ask_hash()}"')


def ask_hash() -> str:
    """Ask for a password, or read it from standard input, and return its hash."""
    if sys.stdin.isatty():
        given = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    return str(hash_password(given, secrets.token_bytes(SALT_BYTES)))


def revoke(directory: Path, which: str) -> str:
    """Add the certificate of a node or client to the list of revoked certificates, and return the list's path.

    Args:
        which: the name in the certificate, or its serial number.

    Raises:
        ConfigError: there is no such certificate, or there are several; or the list cannot be written.
    """
    from bedrockish.cli.certificates import ISSUED

    certificate, issued, found = directory / f"{which}.pem", directory / ISSUED, directory / REVOKED
    try:
        known = dict[int, str]()
        for line in issued.read_text(encoding="utf-8").splitlines() if issued.exists() else ():
            number, _, told = line.partition("#")
            known[int(number, 16)] = told.strip()
        gone = read_revoked(found.read_text(encoding="utf-8")) if found.exists() else frozenset[int]()
        named = {serial: told for serial, told in known.items() if told.partition(",")[0] == which}
        if certificate.exists():
            serial, ends = read_certificate(certificate.read_text(encoding="utf-8"))
            named.setdefault(serial, f"{which}, ends {ends:%Y-%m-%d}")
        if not named and SERIAL.fullmatch(which):
            named = {int(which, 16): known.get(int(which, 16), "by its serial number")}
        left = {serial: told for serial, told in named.items() if serial not in gone}
        if len(left) != 1:
            raise ConfigError(_not_one(which, directory, named, left))
        add_lines(found, [f"{serial:X}  # {told}" for serial, told in left.items()])
    except OSError as error:
        raise ConfigError(f"{error.filename or found}: {error.strerror}") from error
    except (ValueError, CertificateError) as error:
        raise ConfigError(f"{certificate}, {issued} or {found} cannot be read: {error}") from error
    return str(found)


def _not_one(which: str, directory: Path, named: dict[int, str], left: dict[int, str]) -> str:
    """Return why a name does not determine exactly one certificate that is not revoked."""
    if left:
        several = "; ".join(f"{serial:X} is of {told}" for serial, told in left.items())
        return f"{which} has {len(left)} certificates; name the one to revoke by its serial number: {several}"
    if named:
        return f"no certificate of {which} counts any more: all of them are in {directory / REVOKED}"
    return (
        f"{directory} knows no certificate of {which}; give its serial number, as 'openssl x509 -noout -serial' prints "
        "it, or the folder of the authority"
    )


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("nodes", metavar="NODE=HOST[,HOST]...", nargs=-1)
@click.option("--client", "clients", metavar="NAME", multiple=True, help="Also make a certificate for a client.")
@days_option
@click.option(
    "--revoke", "revoked", metavar="NAME|SERIAL", multiple=True, help="Add this certificate to the list revoked.txt."
)
def tls(directory: Path, nodes: tuple[str, ...], clients: tuple[str, ...], days: int, revoked: tuple[str, ...]) -> None:
    """Make certificates for nodes, and for clients, in DIRECTORY.

    Give each node's name, and every name or address by which peers and clients reach it. The first run also makes the
    cluster's own authority, ca.pem; keep ca-key.pem where no node is. Needs pip install 'bedrockish[tls]'.
    """
    try:
        from bedrockish.cli.certificates import Authority, locked
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name} is missing; pip install 'bedrockish[tls]'") from error
    wanted = {}
    for node in nodes:
        name, equals, hosts = node.partition("=")
        if not equals or not hosts.strip(","):
            raise UsageError(f"{node!r} should be NODE=HOST, such as A=host1 or A=host1,10.0.0.1")
        wanted[name] = [host for host in hosts.split(",") if host]
    if not wanted and not clients and not revoked:
        raise UsageError("name at least one node or client, such as A=host1")
    with locked(directory, make=bool(wanted or clients)):
        for name in revoked:
            click.echo(revoke(directory, name))
        if not wanted and not clients:
            return
        authority = Authority.at(directory, days)
        for node, reached in wanted.items():
            click.echo(authority.issue(node, [node, *reached], days, for_node=True))
        for name in clients:
            click.echo(authority.issue(name, [], days, for_node=False))
