"""Each law finds its manipulations, and the documented limits are real: no law finds the rest."""

import re
from pathlib import Path

import pytest

from bedrockish_journal.audit.duck import run_audits
from bedrockish_journal.audit.queries import QUERIES
from bedrockish_journal.audit.report import LawOutcome
from bedrockish_journal.model.errors import JournalPrunedError, ReplayMismatchError
from bedrockish_journal.model.laws import ANCHORS, LAWS, TABLES
from bedrockish_journal.verify.tables import compare_with_journal
from bedrockish_journal.verify.verify import verify
from tests.journal.anchoring import anchored, hold
from tests.journal.tampering import SEEN, UNANCHORED, UNSEEN, make, tampered

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("laws") / "sound")


def told(paths: list[Path], law: str) -> set[str]:
    """Return the laws that the walk finds broken; it compares tables only for laws about them."""
    found = {finding.check for finding in verify(paths).findings}
    if law == "tables":
        for path in paths:
            try:
                found |= {"tables" for _ in compare_with_journal(path, lambda _db: None, 1)}
            except ReplayMismatchError:
                found.add("tables")
            except JournalPrunedError:
                pass  # the tables cannot be rebuilt
    return found


def asked(paths: list[Path], laws: frozenset[str] = frozenset(QUERIES)) -> tuple[set[str], set[str]]:
    """Return the broken laws among some, as the audit finds them, and the laws that it did not check."""
    answers = list(run_audits([str(path) for path in paths], 5, laws=laws))
    found = {one.check for one in answers if isinstance(one, LawOutcome) and one.counts["fault"]}
    return found, {law for one in answers if isinstance(one, dict) for law in one}


def test_sound_journals_obey_all_laws(sound: Path) -> None:
    paths = sorted(sound.glob("*.db"))
    assert told(paths, "tables") == set()
    assert told(paths[:1], "tables") == set()
    assert asked(paths) == (set(), {"tables", "anchor"})
    assert asked(paths[:1]) == (set(), {"fork", "lost", "tables", "anchor"})


@pytest.mark.parametrize("what", SEEN)
def test_verify_and_audit_find_each_manipulation(sound: Path, tmp_path: Path, what: str) -> None:
    law, deed = SEEN[what]
    with tampered(sound, tmp_path, deed) as paths:
        assert law in told(paths, law)
        found, unseen = asked(paths, frozenset({law} & QUERIES.keys()))
        assert law in (found if law in QUERIES else unseen)


@pytest.mark.parametrize("what", UNSEEN)
def test_change_of_all_files_is_detected_by_an_anchor_only(sound: Path, tmp_path: Path, what: str) -> None:
    """The exception is a change of bytes that no hash covers."""
    anchors = anchored(sorted(sound.glob("*.db")))
    with tampered(sound, tmp_path, UNSEEN[what]) as paths:
        assert told(paths, "tables") == set()
        assert asked(paths)[0] == set()
        assert bool(hold(paths, anchors).findings) == (what not in UNANCHORED)


def test_anchor_of_the_same_journals_has_no_findings(sound: Path) -> None:
    paths = sorted(sound.glob("*.db"))
    anchors = anchored(paths)
    assert hold(paths, anchors).findings == []
    for path in paths:  # a node may lag: entries that another node has are not missing
        assert hold([path], anchored([path])).findings == []


def test_every_law_has_a_tampering_and_a_name_of_its_own() -> None:
    assert {law for law, _ in SEEN.values()} == {law.name for law in LAWS} - {"anchor"}
    assert len({law.name for law in LAWS}) == len(LAWS)
    assert {law.name for law in LAWS if law.needs not in (TABLES, ANCHORS)} == QUERIES.keys()


def test_laws_page_lists_all_tested_manipulations() -> None:
    page = (ROOT / "docs" / "laws.md").read_text()
    tried = [(what, law) for what, (law, _) in SEEN.items()]
    assert re.findall(r"^\| ([^`|]+) \| `(\w+)` \|$", page, re.MULTILINE) == tried
    unseen = [(what, "no" if what in UNANCHORED else "yes") for what in UNSEEN]
    assert re.findall(r"^\| ([^`|]+) \| (yes|no)[^|]* \|$", page, re.MULTILINE) == unseen
