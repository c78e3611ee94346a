"""A small certificate authority for one cluster, made by ``bedrockish tls`` with the cryptography package."""

import datetime
import ipaddress
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bedrockish.common.durable_files import PART, add_lines, finish, lock_folder, make_folder, write_part
from bedrockish.errors import ConfigError

AUTHORITY_DAYS = 7300
EARLIER = datetime.timedelta(hours=1)  # a certificate is valid from this long before its issue, for slow clocks
CA, CA_KEY = "ca.pem", "ca-key.pem"
ISSUED = "issued.txt"  # names and serial numbers of signed certificates, needed to revoke one whose file is lost
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Authority:
    """The authority that signs the certificates of a cluster."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._directory, self._certificate, self._key = directory, certificate, key

    @classmethod
    def at(cls, directory: Path, days: int) -> "Authority":
        """Return the authority whose files are in a directory; make it if they are missing.

        Raises:
            ConfigError: the files cannot be read or written.
        """
        ca, ca_key = directory / CA, directory / CA_KEY
        try:
            make_folder(directory)
            _remove_unfinished(directory)
            if ca.exists() != ca_key.exists():
                raise ConfigError(
                    f"{directory} has only one of {CA} and {CA_KEY}; bring the other one, or name another directory"
                )
            if not ca.exists():
                cls._make(ca, ca_key, max(days, AUTHORITY_DAYS))
            key = load_pem_private_key(ca_key.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(ca.read_bytes())
        except OSError as error:
            raise ConfigError(f"{error.filename or directory}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{ca} and {ca_key} are not a certificate and its key, or the key has a password"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{ca_key} is not a key that 'bedrockish tls' has made")
        return cls(directory, certificate, key)

    @staticmethod
    def _make(ca: Path, ca_key: Path, days: int) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bedrockish cluster authority")])
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_pair((ca_key, _pem(key)), (ca, certificate.public_bytes(Encoding.PEM)))

    def issue(self, name: str, hosts: list[str], days: float, *, for_node: bool) -> str:
        """Make a certificate and its key, and return the names of their files.

        Args:
            name: the name of the node or client, and of the files.
            hosts: the names and addresses for which the certificate is valid.
            for_node: whether the certificate is also valid for a server, to which others connect.

        Raises:
            ConfigError: the name cannot be the name of a file, or the files exist already.
        """
        if not FILE_NAME.fullmatch(name) or f"{name}.pem" in (CA, CA_KEY):
            raise ConfigError(f"{name!r} cannot be the name of a file; use letters, digits and _.-")
        cert_file, key_file = self._directory / f"{name}.pem", self._directory / f"{name}-key.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        # No node can have a colon in its name, so a client's certificate never passes for a node's.
        common_name = name if for_node else f"client:{name}"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if for_node else [])]
        builder = _builder(subject, self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if for_node:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), False)
        authority_key = self._key.public_key()
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        try:
            taken = next((file for file in (key_file, cert_file) if file.exists()), None)
            if taken is not None:
                raise ConfigError(f"{taken} is there already; move it away first")
            self._record(name, certificate)
            _write_pair((key_file, _pem(key)), (cert_file, certificate.public_bytes(Encoding.PEM)))
        except OSError as error:
            raise ConfigError(f"{error.filename or self._directory}: {error.strerror}") from error
        return f"{cert_file} {key_file}"

    def _record(self, name: str, certificate: x509.Certificate) -> None:
        """Write the certificate's name and serial number to the list, before the certificate exists as a file."""
        made, ends = certificate.not_valid_before_utc + EARLIER, certificate.not_valid_after_utc
        line = f"{certificate.serial_number:X}  # {name}, made {made:%Y-%m-%d %H:%M}, ends {ends:%Y-%m-%d}"
        add_lines(self._directory / ISSUED, [line])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is neither a name nor an address of a machine") from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_pair(key: tuple[Path, bytes], certificate: tuple[Path, bytes]) -> None:
    """Write a key and its certificate, or neither: a key alone is useless, and would block the next attempt."""
    write_part(*key, 0o600)
    write_part(*certificate, 0o644)
    finish(key[0], certificate[0])


def _remove_unfinished(directory: Path) -> None:
    """Remove keys and certificates that a killed process has not finished.

    A finished key is removed, too, if its certificate is unfinished: the key was never used.
    """
    for part in directory.glob(f"*.pem{PART}"):
        certificate = part.with_name(part.name.removesuffix(PART))
        if not certificate.name.endswith("-key.pem") and not certificate.exists():
            certificate.with_name(f"{certificate.stem}-key.pem").unlink(missing_ok=True)
        part.unlink()


@contextmanager
def locked(directory: Path, *, make: bool) -> Iterator[None]:
    """Let one process at a time change the files of an authority; others wait.

    Args:
        make: whether to make the directory if it is missing.

    Raises:
        ConfigError: the directory cannot be made or read.
    """
    try:
        if make:
            make_folder(directory)
        folder = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{error.filename or directory}: {error.strerror}") from error
    try:
        lock_folder(folder, directory, partial(print, file=sys.stderr))
        yield
    finally:
        os.close(folder)
