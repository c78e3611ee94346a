"""The directory of a continuous backup in an object store: S3, Google's, Azure's, or a directory, by ``obstore``.

Files are cut into chunks, and each chunk is stored once, under a name made from its content. So a snapshot shares its
unchanged chunks with the snapshot before it, and only the new chunks of a growing segment are sent. A manifest lists
the chunks of each file. Objects are never changed. A manifest is written only if its number is free, so that the second
of two writers gets an error.
With a key, objects are encrypted and bound to their names (AES-256-GCM): without the key no object can be read,
changed, or put in the place of another object. The store can still lose objects, or show an older state.

``obstore`` binds the Rust crate ``object_store``: it is one wheel without further packages, and has a conditional PUT
for all of these stores, unlike fsspec.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bedrockish.errors import ConfigError, DamagedError, UnavailableError

CHUNK_BYTES = 1 << 20
AT_ONCE = 8  # objects that are sent or fetched at the same time
MANIFESTS_KEPT = 8
MANIFEST_BYTES_MAX = 256 << 20  # as JSON; enough for a directory of some terabytes
GARBAGE_AGE = timedelta(hours=1)  # a younger chunk may belong to a manifest that is not written yet
MAGIC, PLAIN, ENCRYPTED = b"BRO1", b"\0", b"\1"
KEY_BYTES, ID_BYTES, NONCE_BYTES = 32, 8, 12
FORMAT = 1
NAME = re.compile(r"(snapshot|journal)-\d{6}\.db")
_CHUNK = re.compile(r"[0-9a-f]{64}")
MISSING = "the package {name} is missing; pip install 'bedrockish[backup]'"


class Key:
    """A secret of a backup: encrypts objects, and names chunks so that their names reveal nothing of their content."""

    def __init__(self, secret: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as error:
            raise ConfigError(MISSING.format(name=error.name)) from error
        self.id = _derived(secret, b"id")[:ID_BYTES]
        self._names = _derived(secret, b"names")
        self._cipher = AESGCM(_derived(secret, b"encryption"))

    def name(self, content: bytes) -> str:
        """Return the name of a chunk."""
        return hmac.new(self._names, content, hashlib.sha256).hexdigest()

    def encrypt(self, name: str, data: bytes) -> bytes:
        """Return the encrypted form in which data are stored under a name."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self.id + nonce + self._cipher.encrypt(nonce, data, name.encode())

    def decrypt(self, name: str, stored: bytes) -> bytes | None:
        """Return the data that were encrypted under a name; None if they were changed or have another name."""
        from cryptography.exceptions import InvalidTag

        nonce, body = stored[ID_BYTES : ID_BYTES + NONCE_BYTES], stored[ID_BYTES + NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, body, name.encode())
        except (InvalidTag, ValueError):
            return None


def _derived(secret: bytes, what: bytes) -> bytes:
    return hmac.new(secret, b"bedrockish backup " + what, hashlib.sha256).digest()


def make_key(path: Path) -> None:
    """Write a new key into a new file, which only its owner may read.

    Raises:
        ConfigError: the file is there, or cannot be written.
    """
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already, and a key is never written over; name another file") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        with file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()  # an empty file would pass for a key
        raise ConfigError(f"{path}: {error.strerror}") from error


def read_key(path: Path) -> Key:
    """Read a key.

    Raises:
        ConfigError: the file is not a key, or other users can read it.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others; chmod 600 {path}")
        secret = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no key; make one with 'bedrockish backup key FILE'") from error
    if len(secret) != KEY_BYTES:
        raise ConfigError(f"{path} is no key; make one with 'bedrockish backup key FILE'")
    return Key(secret)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a manifest.

    Attributes:
        name: its name in the directory.
        size: its size in bytes.
        digest: SHA-256 of its content, in hexadecimal.
        chunks: the names of its chunks, in order.
    """

    name: str
    size: int
    digest: str
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state of the directory.

    Attributes:
        number: the numbers count up from 1.
        before: SHA-256 of the manifest before it, in hexadecimal.
        cluster: SHA-256 of the founding membership, which identifies the cluster.
        complete: the clock up to which the files have all commits.
        files: the files, by name.
    """

    number: int
    before: str
    cluster: str
    complete: int
    files: Mapping[str, StoredFile]

    def packed(self) -> bytes:
        """Return the manifest as JSON."""
        files = [
            {"name": one.name, "size": one.size, "sha256": one.digest, "chunks": one.chunks}
            for one in self.files.values()
        ]
        told = {"format": FORMAT, "number": self.number, "before": self.before, "cluster": self.cluster}
        return json.dumps({**told, "complete": self.complete, "files": files}).encode()


def read_manifest(data: bytes, number: int) -> Manifest:
    """Read a manifest, whose content is not trusted.

    Raises:
        ConfigError: the manifest has the format of another release.
        DamagedError: the data are not a manifest.
    """
    try:
        told = json.loads(data)
        if told["format"] != FORMAT:
            raise ConfigError(f"manifest {number} has the format {told['format']}, and this program reads {FORMAT}")
        files = [
            StoredFile(str(one["name"]), int(one["size"]), str(one["sha256"]), tuple(map(str, one["chunks"])))
            for one in told["files"]
        ]
        names = [name for one in files for name in one.chunks]
        if told["number"] != number or not all(map(_CHUNK.fullmatch, names)):
            raise ValueError
        if not all(NAME.fullmatch(one.name) and _fits(one) for one in files):
            raise ValueError
        found = {one.name: one for one in files}
        return Manifest(number, str(told["before"]), str(told["cluster"]), int(told["complete"]), found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"manifest {number} is not what was written") from error


def _fits(one: StoredFile) -> bool:
    return one.size >= 0 and len(one.chunks) == -(-one.size // CHUNK_BYTES)


SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "file")
FORMS = "write s3://bucket/prefix, gs://…, az://… or file:///…"
NO_BUCKET = "there is no such bucket; make it first, or correct its name"
MISTAKES = {  # by words in the error of the library or the store; a retry does not help
    "NoSuchBucket": NO_BUCKET,
    "The specified bucket does not exist": NO_BUCKET,
    "ContainerNotFound": NO_BUCKET,
    "HTTP error: builder error": "the environment names a place without TLS; AWS_ALLOW_HTTP=true allows it, for a test",
}
HINTS = {
    "169.254.169.254": "the environment has no credentials, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and "
    "so the machine was asked for some",
}


class ObjectStore:
    """A prefix in an object store.

    Args:
        url: ``s3://bucket/prefix``, ``gs://…``, ``az://…`` or ``file:///directory``. Credentials come from the
            environment, as for each provider's own tools: AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ….
        keys: the first key encrypts, every key decrypts; without keys nothing is encrypted.

    Raises:
        ConfigError: the URL has another scheme, or ``obstore`` is missing.
    """

    def __init__(self, url: str, keys: Sequence[Key] = ()) -> None:
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ModuleNotFoundError as error:
            raise ConfigError(MISSING.format(name=error.name)) from error
        self._api: Any = obstore
        self._errors = (obstore.exceptions.BaseError, OSError)
        self._closed = (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)
        self.url = url
        if url.partition("://")[0] not in SCHEMES:
            raise ConfigError(f"{url} is no object store; {FORMS}")
        self._keys = {key.id: key for key in keys}
        self._key = keys[0] if keys else None
        options: dict[str, Any] = {"mkdir": True} if url.startswith("file:") else {}
        try:
            self._store: Any = obstore.store.from_url(url, **options)
        except Exception as error:  # obstore has several errors for a wrong URL
            said = _first_line(error)
            raise ConfigError(f"{url} is no object store: {said}; {FORMS}") from error

    # -- objects ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._closed as error:
            raise ConfigError(f"{self.url} does not let us in: {_first_line(error)}") from error
        except FileNotFoundError as error:
            raise DamagedError(f"{self.url} has no {what}: {_first_line(error)}") from error
        except self._errors as error:
            text = str(error)
            for sign, why in MISTAKES.items():
                if sign in text:
                    raise ConfigError(f"{self.url}: {why}") from error
            hint = next((f"; {why}" for sign, why in HINTS.items() if sign in text), "")
            raise UnavailableError(f"{self.url}: {what}: {_first_line(error)}{hint}") from error

    def _seal(self, name: str, data: bytes) -> bytes:
        packed = zlib.compress(data, 1)
        if self._key is None:
            return MAGIC + PLAIN + packed
        return MAGIC + ENCRYPTED + self._key.encrypt(name, packed)

    def _open(self, name: str, stored: bytes, most: int) -> bytes:
        """Return the content of an object.

        Raises:
            ConfigError: the object is encrypted with a key that was not given.
            DamagedError: the object is not the one that was stored under its name.
        """
        head, body = stored[: len(MAGIC) + 1], stored[len(MAGIC) + 1 :]
        packed: bytes | None = None
        if head == MAGIC + ENCRYPTED:
            key = self._keys.get(body[:ID_BYTES])
            if key is None:
                raise ConfigError(f"{self.url}/{name} is encrypted with a key that was not given; name it with --key")
            packed = key.decrypt(name, body)
        elif head == MAGIC + PLAIN:
            if self._keys:
                raise DamagedError(
                    f"{self.url}/{name} is not encrypted, and should be: somebody else has put it there, or it is from "
                    "before there was a key; then name another prefix"
                )
            packed = body
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(packed or b"", most)
            if packed and unpacker.eof:
                return data
        except zlib.error:
            pass
        raise DamagedError(f"{self.url}/{name} was changed; restore from another place, or an older manifest")

    def put_chunk(self, content: bytes) -> str:
        """Store a chunk, and return its name."""
        name = self.chunk_name(content)
        with self._explained(f"chunk {name}"):
            self._api.put(self._store, _chunk_path(name), self._seal(name, content), use_multipart=False)
        return name

    def chunk_name(self, content: bytes) -> str:
        """Return the name that a chunk has."""
        return self._key.name(content) if self._key else hashlib.sha256(content).hexdigest()

    def get_chunk(self, name: str) -> bytes:
        """Return a chunk.

        Raises:
            DamagedError: the chunk is missing, or was changed.
        """
        with self._explained(f"chunk {name}"):
            stored = bytes(self._api.get(self._store, _chunk_path(name)).bytes())
        data = self._open(name, stored, CHUNK_BYTES)
        if not self._keys and hashlib.sha256(data).hexdigest() != name:
            raise DamagedError(f"{self.url}/{name} was changed; restore from another place, or an older manifest")
        return data

    # -- manifests -------------------------------------------------------------------------------------------------

    def manifests(self) -> list[int]:
        """Return the numbers of all manifests, in order."""
        with self._explained("list of manifests"):
            paths = [one["path"] for page in self._api.list(self._store, "manifests") for one in page]
        return sorted(int(path.rpartition("/")[2]) for path in paths if re.fullmatch(r".*/\d{8}", path))

    def manifest(self, number: int) -> tuple[Manifest, str]:
        """Return a manifest and its SHA-256.

        Raises:
            DamagedError: the manifest was changed.
        """
        name = f"manifests/{number:08}"
        with self._explained(name):
            stored = bytes(self._api.get(self._store, name).bytes())
        data = self._open(name, stored, MANIFEST_BYTES_MAX)
        return read_manifest(data, number), hashlib.sha256(data).hexdigest()

    def put_manifest(self, manifest: Manifest) -> str:
        """Store a manifest under its number, if that is free; return its SHA-256.

        Raises:
            ConfigError: another writer has stored a manifest with this number.
        """
        name, data = f"manifests/{manifest.number:08}", manifest.packed()
        try:
            with self._explained(name):
                self._api.put(self._store, name, self._seal(name, data), mode="create", use_multipart=False)
        except UnavailableError as error:
            # An earlier try may have stored the manifest, and only its answer was lost: then the store has ours.
            if manifest.number not in self.manifests():
                raise
            if self.manifest(manifest.number)[0] != manifest:
                raise ConfigError(
                    f"another process also writes a backup to {self.url}; end that process, or name another prefix"
                ) from error
        return hashlib.sha256(data).hexdigest()

    def collect(self) -> int:
        """Remove old manifests, and chunks that no other manifest names; return the number of removed chunks."""
        numbers = self.manifests()
        kept = numbers[-MANIFESTS_KEPT:]
        named = {name for number in kept for one in self.manifest(number)[0].files.values() for name in one.chunks}
        old = datetime.now(UTC) - GARBAGE_AGE
        gone: list[str] = []
        with self._explained("removing what is old"):
            for page in self._api.list(self._store, "chunks"):
                gone += [
                    one["path"]
                    for one in page
                    if one["last_modified"] < old and one["path"].rpartition("/")[2] not in named
                ]
            removed = [f"manifests/{number:08}" for number in numbers[:-MANIFESTS_KEPT]]
            for some in (removed, gone):
                for start in range(0, len(some), 500):
                    self._api.delete(self._store, some[start : start + 500])
        return len(gone)


def _chunk_path(name: str) -> str:
    return f"chunks/{name[:2]}/{name}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


class Mirror:
    """The copy of a directory in an object store, pushed state after state.

    Args:
        store: the object store.
        folder: the directory of a continuous backup.
        cluster: identifies the cluster; see ``Manifest``.

    Raises:
        ConfigError: the store has the backup of another cluster, or a backup that this directory does not continue.
    """

    def __init__(self, store: ObjectStore, folder: Path, cluster: str) -> None:
        self._store, self._cluster = store, cluster
        self._last: Manifest | None = None
        self._digest = ""
        self._known: dict[str, tuple[int, int]] = {}  # file -> size and time of change when it was pushed
        self._collected = 0.0
        numbers = store.manifests()
        if not numbers:
            return
        self._last, self._digest = store.manifest(numbers[-1])
        if self._last.cluster != cluster:
            raise ConfigError(f"{store.url} has the backup of another cluster; name another prefix")
        newest = max((name for name in self._last.files if name.startswith("snapshot")), default="")
        if newest and not (folder / newest).exists():
            raise ConfigError(
                f"{store.url} has a backup that goes on from {newest}, which is not in {folder}: bring it here with "
                f"'bedrockish backup fetch {store.url} DIRECTORY', and follow there; or name another prefix"
            )

    def push(self, paths: Mapping[str, Path], complete: int, say: Callable[[str], None]) -> None:
        """Push the files to the store as they are now; they must not change during the call.

        Args:
            paths: the paths of all files of the backup, by name.
            complete: the clock up to which the files are complete.
            say: called with a report on a push.

        Raises:
            UnavailableError: the store does not answer; it still has its last manifest.
            ConfigError: the store refuses us, or another program writes to it.
            OSError: a file cannot be read.
        """
        last = self._last
        known = {name for one in last.files.values() for name in one.chunks} if last is not None else set[str]()
        files, sent, marks = dict[str, StoredFile](), 0, dict[str, tuple[int, int]]()
        for name, path in paths.items():
            told = path.stat()
            marks[name] = told.st_size, told.st_mtime_ns
            if last is not None and name in last.files and self._known.get(name) == marks[name]:
                files[name] = last.files[name]
                continue
            files[name], more = self._bring(name, path, known)
            sent += more
        if last is not None and last.files == files and last.complete == complete:
            return
        number = last.number + 1 if last is not None else 1
        made = Manifest(number, self._digest, self._cluster, complete, files)
        self._digest = self._store.put_manifest(made)
        self._last, self._known = made, marks
        say(f"{self._store.url}: manifest {number}, {sent} new chunks")

    def collect(self) -> int:
        """Remove old manifests and unused chunks; return the number of removed chunks."""
        return self._store.collect()

    def _bring(self, name: str, path: Path, known: set[str]) -> tuple[StoredFile, int]:
        whole, size, chunks, sent = hashlib.sha256(), 0, list[str](), 0
        with path.open("rb") as file, ThreadPoolExecutor(AT_ONCE) as pool:
            waiting: list[Any] = []
            while content := file.read(CHUNK_BYTES):
                whole.update(content)
                size += len(content)
                chunks.append(chunk := self._store.chunk_name(content))
                if chunk in known:
                    continue
                known.add(chunk)
                sent += 1
                waiting.append(pool.submit(self._store.put_chunk, content))
                if len(waiting) >= AT_ONCE:  # a bound on the chunks in memory
                    waiting.pop(0).result()
            for one in waiting:
                one.result()
        return StoredFile(name, size, whole.hexdigest(), tuple(chunks)), sent


def fetch(store: ObjectStore, folder: Path, say: Callable[[str], None]) -> Manifest:
    """Fetch a backup from a store into a new directory, and return its manifest; files appear whole and durable.

    Raises:
        ConfigError: the store has no backup, the directory has other files, or a key is missing.
        DamagedError: an object is missing, or is not what was stored.
        UnavailableError: the store does not answer; the next call resumes.
    """
    numbers = store.manifests()
    if not numbers:
        raise ConfigError(f"{store.url} has no backup in it; look at the bucket and the prefix")
    manifest, _ = store.manifest(numbers[-1])
    if len(numbers) > 1 and numbers[-1] - 1 in numbers and manifest.before != store.manifest(numbers[-1] - 1)[1]:
        raise DamagedError(f"{store.url}: manifest {manifest.number} does not go on from the one before it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = [one.name for one in folder.iterdir() if one.name.removesuffix(".part") not in manifest.files]
        if strange:
            raise ConfigError(f"{folder} has other files in it ({', '.join(strange[:3])}); name a new directory")
        for one in manifest.files.values():
            _fetch_file(store, folder / one.name, one)
            say(f"{one.name}: {one.size} bytes")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; check the disk") from error
    return manifest


def _fetch_file(store: ObjectStore, path: Path, told: StoredFile) -> None:
    if path.exists():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == told.digest:
                return
    part, whole = path.with_name(path.name + ".part"), hashlib.sha256()
    with part.open("wb") as file, ThreadPoolExecutor(AT_ONCE) as pool:
        os.fchmod(file.fileno(), 0o600)
        for start in range(0, len(told.chunks), AT_ONCE):
            for content in pool.map(store.get_chunk, told.chunks[start : start + AT_ONCE]):
                whole.update(content)
                file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if whole.hexdigest() != told.digest:
        raise DamagedError(f"{told.name} in {store.url} is not what was stored; restore from another place")
    part.rename(path)
