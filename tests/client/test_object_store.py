"""Backups in an object store: changed, swapped, lost and foreign objects are found, and no chunk is sent twice."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from bedrockish.errors import BedrockishError, ConfigError, DamagedError, UnavailableError
from bedrockish.transfer import object_store
from bedrockish.transfer.object_store import CHUNK_BYTES, Mirror, ObjectStore, fetch, make_key, read_key

pytest.importorskip("obstore")
SNAPSHOT, SEGMENT = "snapshot-000001.db", "journal-000001.db"


def silent(_: str) -> None:
    """Say nothing."""


class Place:
    """A directory, a store, and a mirror of the one in the other."""

    def __init__(self, home: Path, *, encrypted: bool) -> None:
        self.home, self.folder, self.there = home, home / "kept", home / "store"
        self.folder.mkdir()
        self.keys: list[Path] = []
        if encrypted:
            self.add_key()
        luck = Random(1)
        self.files = {SNAPSHOT: luck.randbytes(3 * CHUNK_BYTES + 5), SEGMENT: luck.randbytes(CHUNK_BYTES + 7)}
        for name, content in self.files.items():
            (self.folder / name).write_bytes(content)
        self.mirror = Mirror(self.store(), self.folder, "c")
        self.said: list[str] = []
        self.push()

    def add_key(self) -> None:
        path = self.home / f"key{len(self.keys)}"
        make_key(path)
        self.keys.insert(0, path)

    def store(self) -> ObjectStore:
        return ObjectStore(f"file://{self.there}", [read_key(path) for path in self.keys])

    def push(self, complete: int = 1) -> None:
        self.mirror.push(self.paths, complete, self.said.append)

    @property
    def paths(self) -> dict[str, Path]:
        return {name: self.folder / name for name in sorted(self.files)}

    def fetched(self, name: str = "back") -> dict[str, bytes]:
        back = self.home / name
        fetch(self.store(), back, silent)
        return {path.name: path.read_bytes() for path in back.iterdir()}

    def objects(self, what: str) -> list[Path]:
        return sorted(path for path in (self.there / what).rglob("*") if path.is_file())


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, encrypted=request.param)


def test_push_sends_only_new_chunks_and_fetch_restores_all(place: Place) -> None:
    assert place.fetched() == place.files
    before = len(place.objects("chunks"))
    place.files[SEGMENT] += b"more"
    (place.folder / SEGMENT).write_bytes(place.files[SEGMENT])
    place.push(2)
    place.push(2)
    assert place.said[-1].endswith("manifest 2, 1 new chunks")
    assert len(place.said) == 2
    assert len(place.objects("chunks")) == before + 1
    assert place.fetched("again") == place.files
    # Another process goes on where this one ended.
    place.mirror = Mirror(place.store(), place.folder, "c")
    place.push(3)
    assert place.said[-1].endswith("manifest 3, 0 new chunks")
    assert place.fetched("third") == place.files
    assert all(path.stat().st_mode & 0o077 == 0 for path in (place.home / "third").iterdir())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def bomb(path: Path) -> None:
    import zlib

    path.write_bytes(b"BRO1\0" + zlib.compress(bytes(64 << 20), 9))


@pytest.mark.parametrize("harm", [flip, shorten, empty, os.unlink, bomb])
@pytest.mark.parametrize("what", ["chunks", "manifests"])
def test_fetch_detects_damaged_objects(place: Place, harm: Callable[[Path], None], what: str) -> None:
    harm(place.objects(what)[0])
    with pytest.raises((DamagedError, ConfigError) if harm is os.unlink else DamagedError):
        place.fetched()
    assert not any(path.name == SNAPSHOT for path in (place.home / "back").glob("*")) or what == "chunks"


def test_chunks_that_change_places_are_found(place: Place) -> None:
    one, other, *_ = place.objects("chunks")
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(DamagedError, match="changed"):
        place.fetched()


def test_an_older_manifest_in_the_place_of_the_last_is_found(place: Place) -> None:
    place.push(2)
    first, second = place.objects("manifests")
    second.write_bytes(first.read_bytes())
    with pytest.raises(DamagedError):
        place.fetched()


def test_names_in_a_manifest_lead_nowhere_else(place: Place) -> None:
    """An attacker who can write to the store, without a key, writes a manifest."""
    if place.keys:
        pytest.skip("he would need the key")
    (path,) = place.objects("manifests")
    store = place.store()
    content = store._open(path.name, path.read_bytes(), 1 << 20).replace(SEGMENT.encode(), b"../../../tmp/x.db")
    path.write_bytes(store._seal(path.name, content))
    with pytest.raises(DamagedError, match="manifest 1"):
        place.fetched()


def test_second_writer_of_a_prefix_is_refused(place: Place) -> None:
    other = Mirror(place.store(), place.folder, "c")
    place.push(2)
    with pytest.raises(ConfigError, match="another process"):
        other.push(place.paths, 3, silent)
    with pytest.raises(ConfigError, match="another cluster"):
        Mirror(place.store(), place.folder, "d")
    empty_folder = place.home / "empty"
    empty_folder.mkdir()
    with pytest.raises(ConfigError, match="backup fetch"):
        Mirror(place.store(), empty_folder, "c")


def test_a_lost_answer_is_not_somebody_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest was stored, and its answer was lost."""
    store = place.mirror._store
    put = store._api.put

    class Loses:
        def __getattr__(self, name: str) -> object:
            return getattr(api, name)

        def put(self, *arguments: object, **options: object) -> None:
            put(*arguments, **options)
            if options.get("mode") == "create":
                raise OSError("the connection was reset")

    api = store._api
    monkeypatch.setattr(store, "_api", Loses())
    place.push(2)
    monkeypatch.undo()
    place.push(3)
    assert [one.name for one in place.objects("manifests")] == ["00000001", "00000002", "00000003"]


def test_collect_removes_unreferenced_chunks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2, 14):
        place.files[SEGMENT] = Random(number).randbytes(CHUNK_BYTES)
        (place.folder / SEGMENT).write_bytes(place.files[SEGMENT])
        place.push(number)
    count = len(place.objects("chunks"))
    assert place.mirror.collect() == 0, "they are too young: another one may be about to name them"
    monkeypatch.setattr(object_store, "GARBAGE_AGE", -object_store.GARBAGE_AGE)
    named = 4 + object_store.MANIFESTS_KEPT  # the snapshot's, and one segment of each
    assert place.mirror.collect() == count - named
    assert len(place.objects("manifests")) == object_store.MANIFESTS_KEPT
    assert len(place.objects("chunks")) == named
    assert place.fetched() == place.files
    place.push(20)
    assert place.fetched("again") == place.files


def test_keys(tmp_path: Path) -> None:
    """A wrong key is refused, a new key can be added while the old one reads, and the store has no plain content."""
    place = Place(tmp_path, encrypted=True)
    stored = b"".join(path.read_bytes() for path in place.objects("chunks"))
    assert place.files[SEGMENT][:64] not in stored
    old = place.keys[0]
    place.add_key()
    place.mirror = Mirror(place.store(), place.folder, "c")
    (place.folder / SEGMENT).write_bytes(b"new")
    place.files[SEGMENT] = b"new"
    place.push(2)
    assert place.fetched() == place.files
    place.keys.remove(old)
    with pytest.raises(ConfigError, match="a key that was not given"):
        place.fetched("without")
    place.keys.clear()
    with pytest.raises(ConfigError, match="a key that was not given"):
        place.fetched("with none")
    with pytest.raises(ConfigError, match="is there already"):
        make_key(old)
    for text, mode in (("00", 0o600), ("xyz", 0o600), ("00" * 32, 0o644)):
        bad = tmp_path / f"bad{mode}{text[:2]}"
        bad.write_text(text)
        bad.chmod(mode)
        with pytest.raises(ConfigError, match=r"no key|chmod"):
            read_key(bad)


def test_plain_backup_is_not_accepted_as_encrypted(tmp_path: Path) -> None:
    """An attacker who can write to the store, without the key, puts a whole backup there."""
    place = Place(tmp_path, encrypted=False)
    place.add_key()
    with pytest.raises(DamagedError, match="not encrypted, and should be"):
        place.fetched()


@pytest.mark.parametrize("url", ["", "kept", "ftp://x/y", "s3://", "s3:bucket", "\0"])
def test_malformed_store_url_is_named(url: str) -> None:
    with pytest.raises(BedrockishError, match="is no object store"):
        ObjectStore(url)


def test_fetch_resumes_and_refuses_folders_with_other_files(place: Place) -> None:
    back = place.home / "back"
    back.mkdir()
    (back / SNAPSHOT).write_bytes(place.files[SNAPSHOT])
    (back / f"{SEGMENT}.part").write_bytes(b"half")
    assert place.fetched() == place.files
    (back / "mine").write_text("x")
    with pytest.raises(ConfigError, match="other files in it"):
        place.fetched()


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ("404 Not Found: <?xml …>\n<Error><Code>NoSuchBucket</Code>", ConfigError, "no such bucket; make it first"),
        (
            "Error performing GET http://x/ in 4µs - HTTP error: builder error",
            ConfigError,
            "AWS_ALLOW_HTTP=true allows",
        ),
        ("PUT http://169.254.169.254/latest/api/token in 1ms - 403", UnavailableError, "has no credentials, such as"),
        ("HTTP error: error sending request", UnavailableError, "error sending request"),
    ],
)
def test_store_failures_are_explained_in_one_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, said: str, error: type[BedrockishError], told: str
) -> None:
    store = place.store()
    fault = type("GenericError", (store._errors[0],), {})  # obstore's own name for all of these

    class Fails:
        def list(self, *_: object) -> None:
            raise fault(said)

    monkeypatch.setattr(store, "_api", Fails())
    with pytest.raises(error, match=told) as caught:
        store.manifests()
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("url", ["http://host/backups", "https://bucket.s3.amazonaws.com/x", "memory:///x", "kept"])
def test_unsupported_store_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is no object store; write s3://bucket/prefix"):
        ObjectStore(url)
