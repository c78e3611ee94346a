"""The page: a reader trusts only a complete page of this machine's node."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bedrockish.errors import ConfigError, UnavailableError
from bedrockish.local import page as pages
from bedrockish.local.page import READING, REFUSING, SERVING, SIZE, STOPPED, Page, Published, page_path


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = tmp_path / "A.sqlite"
    path.write_bytes(b"x")
    return str(path)


@pytest.fixture
def page(database: str) -> Page:
    made = Page(database, 5, 1 << 20)
    made.beat(SERVING, 0)
    return made


def test_reader_sees_published_facts(database: str, page: Page) -> None:
    page.wrote(7, 120, b"saltsalt", 3)
    page.synced(6)
    page.beat(SERVING, 99)
    reader = Published(database)
    facts = reader.facts()
    reader.check(facts)
    assert (facts.mode, facts.written, facts.durable, facts.safe) == (SERVING, 7, 6, 99)
    assert facts.process == os.getpid()
    assert reader.batch(7) == (7, 120, b"saltsalt", 3)
    assert reader.batch(7 + pages.BATCHES) is None
    assert os.stat(page_path(database)).st_mode & 0o777 == 0o600


def test_page_has_the_bound_on_changes_of_its_node(database: str, page: Page) -> None:
    reader = Published(database)
    assert reader.changes_bytes() == 1 << 20
    again = Page(database, 5, 3 << 20)
    assert reader.changes_bytes() == 3 << 20
    again.put_back()
    assert Published(database).changes_bytes() == 3 << 20
    with open(page_path(database), "r+b") as file:
        file.seek(2176)
        file.write(bytes(12))
    assert Published(database).changes_bytes() is None, "zeros: the page of an older release"


def test_page_never_publishes_an_older_durable_batch(database: str, page: Page) -> None:
    """The sync of the helper thread and the sync of the loop may end in either order."""
    page.synced(9)
    page.synced(8)
    assert Published(database).facts().durable == 9


CUT_OFF = """
import os, sys
from bedrockish.local.page import SERVING, Page, Published, page_path
page = Page(sys.argv[1], 5, 1 << 20)
page.beat(SERVING, 0)
reader = Published(sys.argv[1])
os.truncate(page_path(sys.argv[1]), 0)
page.wrote(6, 120, b"saltsalt", 3)
page.beat(SERVING, 7)
assert reader.facts().safe == 7
assert not page.is_in_place
page.put_back()
assert page.is_in_place
later = Published(sys.argv[1])
assert later.facts().safe == 7
assert later.batch(6).frames == 120
assert later.changes_bytes() == 1 << 20
"""


def test_node_survives_a_page_that_was_cut_off(database: str) -> None:
    """The system ends a process that writes behind the end of a mapped file."""
    subprocess.run([sys.executable, "-c", CUT_OFF, database], check=True, timeout=60)


def test_half_written_page_is_ignored(database: str, page: Page) -> None:
    reader = Published(database, pause=lambda _: None)
    with open(page_path(database), "r+b") as file:
        file.seek(8)
        number = int.from_bytes(file.read(8), "little")
        file.seek(8)
        file.write((number + 1).to_bytes(8, "little"))
        file.flush()
        with pytest.raises(UnavailableError, match="cannot be read"):
            reader.facts()
    page.beat(SERVING, 0)
    assert reader.facts().mode == SERVING


@pytest.mark.parametrize("place", [16, 20, 40, 72, 80, 88])
def test_page_with_a_changed_byte_is_ignored(database: str, page: Page, place: int) -> None:
    reader = Published(database, pause=lambda _: None)
    with open(page_path(database), "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(UnavailableError, match="cannot be read"):
        reader.facts()


def test_half_written_batch_number_is_ignored(database: str, page: Page) -> None:
    page.wrote(7, 120, b"saltsalt", 3)
    with open(page_path(database), "r+b") as file:
        file.seek(128 + 7 * 32 + 8)
        file.write(b"\xff")
    assert Published(database).batch(7) is None


def test_reader_never_sees_a_torn_page(database: str, page: Page) -> None:
    """The page has the same number as last batch written and as safe clock; a reader must never find two numbers."""
    reader, over = Published(database), threading.Event()
    wrong: list[tuple[int, int]] = []

    def read() -> None:
        while not over.is_set():
            facts = reader.facts()
            if facts.written != facts.durable and facts.durable > 5:
                wrong.append((facts.written, facts.durable))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(6, 20_000):
        with page._lock:
            page._facts = page._facts._replace(written=number, durable=number)
            page._write_facts()
    over.set()
    thread.join()
    assert not wrong


def test_node_that_does_not_serve_is_refused(database: str, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Published(database)
    page.beat(READING, 0)
    assert not reader.facts().why_not
    page.beat(REFUSING, 0)
    with pytest.raises(UnavailableError, match="not serving"):
        reader.check(reader.facts())
    page.close()
    with pytest.raises(UnavailableError, match=r"its node, process \d+, runs and does not serve it now"):
        reader.check(reader.facts())
    monkeypatch.setattr("bedrockish.local.page._process_since", lambda _: 0)
    with pytest.raises(UnavailableError, match="its node is stopped; start its node"):
        reader.check(reader.facts())
    assert reader.facts().mode == STOPPED


def test_page_generation_changes_when_the_node_withdraws_its_file(database: str, page: Page) -> None:
    """If the generation is the same before and after a reader opens the file, it has opened the right one."""
    reader = Published(database)
    first = reader.facts().generation
    page.beat(READING, 0)
    assert reader.facts().generation == first
    page.close()
    stopped = reader.facts().generation
    assert stopped != first
    again = Page(database, 5, 1 << 20)
    again.beat(SERVING, 0)
    assert reader.facts().generation not in (first, stopped), "the page is written in place: the old map shows it"


def test_node_that_does_not_update_its_page_counts_as_stopped(
    database: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page counts as old also after a sleep of the machine, because its clock includes the sleep."""
    reader = Published(database)
    now = pages.now_ns()
    monkeypatch.setattr(pages, "now_ns", lambda: now + pages.SILENT_NS + 1_000_000_000)
    with pytest.raises(UnavailableError, match="has not run for"):
        reader.check(reader.facts())


def test_page_of_another_machine_is_refused(database: str, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines may mount the volume, or the page may be left from before a power failure."""
    reader = Published(database)
    monkeypatch.setattr(pages, "boot_id", lambda: bytes(16))
    with pytest.raises(UnavailableError, match="another machine"):
        reader.check(reader.facts())


def test_page_that_another_thread_has_closed_is_not_read(database: str, page: Page) -> None:
    reader = Published(database)
    reader.facts()
    reader.close()
    for read in (reader.facts, lambda: reader.batch(1), lambda: reader.still_has(b"")):
        with pytest.raises(UnavailableError, match="closed"):
            read()


def test_page_says_when_a_snapshot_should_be_released(database: str, page: Page) -> None:
    page.beat(SERVING, 0)
    reader = Published(database)
    generation = reader.facts().generation
    assert not reader.wants_release(generation)
    assert reader.wants_release(generation - 1)
    page.wrote(3, 10, bytes(8), 1, is_log_ending=True)
    assert reader.wants_release(generation)
    page.wrote(4, 1, bytes(8), 1)
    assert not reader.wants_release(generation)
    page.beat(STOPPED, 0)
    assert reader.wants_release(generation + 1)
    reader.close()
    assert reader.wants_release(generation)


def test_copied_database_with_its_copied_page_is_refused(database: str, page: Page, tmp_path: Path) -> None:
    other = str(tmp_path / "copy.sqlite")
    shutil.copy(database, other)
    shutil.copy(page_path(database), page_path(other))
    reader = Published(other)
    with pytest.raises(UnavailableError, match="copy"):
        reader.check(reader.facts())


def test_reader_refuses_a_database_file_that_was_exchanged(database: str, page: Page, tmp_path: Path) -> None:
    reader = Published(database)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"y")
    fresh.rename(database)
    with pytest.raises(UnavailableError, match="exchanged"):
        reader.check(reader.facts())


def test_network_file_system_is_refused(database: str, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Published(database)
    assert pages.file_system(os.stat(database).st_dev) not in pages.NETWORK_FILE_SYSTEMS
    monkeypatch.setattr(pages, "file_system", lambda _: "nfs4")
    with pytest.raises(UnavailableError, match="network file system nfs4"):
        reader.check(reader.facts())


def test_file_that_is_mounted_without_its_log_is_refused(
    database: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would make another log in the program's container, and read the file without the last commits."""
    reader = Published(database)
    reader.check(reader.facts())
    monkeypatch.setattr(pages, "_is_mounted_alone", lambda path, _second: path == database)
    with pytest.raises(UnavailableError, match="is a mount of its own, without its log; mount the node's folder, or"):
        reader.check(reader.facts())


def test_another_user_is_told_to_be_that_of_the_node(
    database: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, *_: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UnavailableError, match="Permission denied; run the program as the user of the node, or"):
        Published(database)


def test_file_without_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="bedrockish serve"):
        Published(str(tmp_path / "A.sqlite"))
    short = tmp_path / "B.sqlite-node"
    short.write_bytes(bytes(SIZE - 1))
    with pytest.raises(UnavailableError, match="not a node's page"):
        Published(str(tmp_path / "B.sqlite"))


def test_node_replaces_its_removed_page_file(database: str, page: Page) -> None:
    page.wrote(7, 120, b"saltsalt", 3)
    page.synced(7)
    before = Published(database)
    old = before.facts()
    assert page.is_in_place
    os.unlink(page_path(database))
    assert not page.is_in_place
    page.put_back()
    page.beat(SERVING, 8)
    assert page.is_in_place
    assert before.facts().mode == STOPPED
    assert before.facts().generation != old.generation
    after = Published(database)
    facts = after.facts()
    after.check(facts)
    assert (facts.mode, facts.durable, facts.safe) == (SERVING, 7, 8)
    assert after.batch(7) == (7, 120, b"saltsalt", 3)
    assert os.stat(page_path(database)).st_mode & 0o777 == 0o600
    assert sorted(os.listdir(os.path.dirname(database))) == ["A.sqlite", "A.sqlite-node"]


def test_page_knows_whether_the_file_at_its_path_is_its_own(database: str, page: Page) -> None:
    """A node whose directory was replaced must not write over the page of the node there."""
    assert page.has_its_file
    other = database + "2"
    Path(other).write_bytes(b"x")
    os.replace(other, database)
    assert not page.has_its_file
    os.unlink(database)
    assert not page.has_its_file


def test_full_disk_is_noticed_before_the_page_is_written(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to mapped memory that has no room on the disk would kill the process."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        Page(database, 5, 1 << 20)
