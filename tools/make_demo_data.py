"""Builds tools/data/timezones.sqlite from the IANA time zone database, as the PyPI package ``tzdata`` carries it.

The demo ships the result, so this runs only when the data should become newer:
``pip install tzdata && python -m tools.make_demo_data``.
"""

import re
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from zoneinfo import ZoneInfo, reset_tzpath

TARGET = Path(__file__).resolve().parent / "data" / "timezones.sqlite"
FIRST_YEAR, LAST_YEAR = 2020, 2026

SCHEMA = """
CREATE TABLE country(
  code TEXT PRIMARY KEY CHECK (length(code) = 2),
  name TEXT NOT NULL
);
CREATE TABLE zone(
  name TEXT PRIMARY KEY,
  latitude REAL NOT NULL CHECK (latitude BETWEEN -90 AND 90),
  longitude REAL NOT NULL CHECK (longitude BETWEEN -180 AND 180),
  comments TEXT
);
CREATE TABLE zone_country(
  zone TEXT NOT NULL REFERENCES zone(name),
  country TEXT NOT NULL REFERENCES country(code),
  PRIMARY KEY (zone, country)
) WITHOUT ROWID;
CREATE TABLE clock_change(
  id INTEGER PRIMARY KEY,
  zone TEXT NOT NULL REFERENCES zone(name),
  at TEXT NOT NULL,
  offset_before INTEGER NOT NULL,
  offset_after INTEGER NOT NULL,
  abbreviation TEXT NOT NULL
);
CREATE INDEX zone_country_country ON zone_country(country, zone);
CREATE UNIQUE INDEX clock_change_zone_at ON clock_change(zone, at);
CREATE VIEW country_zone AS
  SELECT country.name AS country, zone.name AS zone, zone.latitude, zone.longitude, zone.comments
  FROM zone_country JOIN country ON country.code = zone_country.country JOIN zone ON zone.name = zone_country.zone;
"""


def read_table(name: str) -> Iterator[list[str]]:
    """Yield the fields of each line of one of the database's tables, without its comments."""
    for line in files("tzdata").joinpath("zoneinfo", name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def degrees(text: str) -> tuple[float, float]:
    """Turn ISO 6709 (±DDMM±DDDMM or ±DDMMSS±DDDMMSS) into latitude and longitude.

    >>> degrees("+4230+00131")
    (42.5, 1.516667)
    """
    match = re.fullmatch(r"([+-])(\d\d)(\d\d)(\d\d)?([+-])(\d{3})(\d\d)(\d\d)?", text)
    assert match is not None, f"not a position: {text}"

    def angle(sign: str, whole: str, minutes: str, seconds: str | None) -> float:
        value = int(whole) + int(minutes) / 60 + int(seconds or 0) / 3600
        return round(-value if sign == "-" else value, 6)

    return angle(*match.group(1, 2, 3, 4)), angle(*match.group(5, 6, 7, 8))


def changes(name: str) -> Iterator[tuple[str, str, int, int, str]]:
    """Yield when a zone's clocks changed: day by day, then to the minute by bisection."""
    zone = ZoneInfo(name)

    def offset(at: datetime) -> int:
        shift = at.astimezone(zone).utcoffset()
        assert shift is not None
        return int(shift.total_seconds())

    at, end = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)
    while at < end:
        low, high = at, at + timedelta(days=1)
        at = high
        if offset(low) == offset(high):
            continue
        before = offset(low)
        while high - low > timedelta(minutes=1):
            middle = low + (high - low) // 2
            middle -= timedelta(seconds=middle.second, microseconds=middle.microsecond)
            low, high = (middle, high) if offset(middle) == before else (low, middle)
        abbreviation = high.astimezone(zone).tzname() or ""
        yield name, high.strftime("%Y-%m-%dT%H:%M:%SZ"), before, offset(high), abbreviation


def main() -> None:
    """Write the database anew and say what is in it."""
    try:
        version = import_module("tzdata").IANA_VERSION
    except ModuleNotFoundError:
        sys.exit("the package tzdata is not installed: pip install tzdata")
    reset_tzpath(to=())  # the zones of the package, not those of this machine's operating system
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.unlink(missing_ok=True)
    db = sqlite3.connect(TARGET)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO country VALUES (?, ?)", read_table("iso3166.tab"))
    for countries, position, name, *rest in read_table("zone1970.tab"):
        db.execute("INSERT INTO zone VALUES (?, ?, ?, ?)", (name, *degrees(position), rest[0] if rest else None))
        db.executemany("INSERT INTO zone_country VALUES (?, ?)", ((name, code) for code in countries.split(",")))
        db.executemany(
            "INSERT INTO clock_change(zone, at, offset_before, offset_after, abbreviation) VALUES (?, ?, ?, ?, ?)",
            changes(name),
        )
    db.commit()
    assert not db.execute("PRAGMA foreign_key_check").fetchall()
    db.execute("VACUUM")
    for table in ("country", "zone", "zone_country", "clock_change"):
        print(f"{table:14}{db.execute(f'SELECT count(*) FROM {table}').fetchone()[0]:6} rows")
    db.close()
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes, IANA time zone database {version}")


if __name__ == "__main__":
    main()
