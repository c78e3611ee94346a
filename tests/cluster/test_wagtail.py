"""Wagtail's migrations and its search backend of FTS5 run unchanged, with the results of SQLite."""

import json
import os
import sys
from pathlib import Path

import pytest
import trio

from tools.cluster import local_cluster

pytest.importorskip("wagtail")
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SETTINGS = """
import os
SECRET_KEY, ROOT_URLCONF, USE_TZ, DEFAULT_AUTO_FIELD = "x", "settings", True, "django.db.models.AutoField"
INSTALLED_APPS = [
    *("wagtail.sites", "wagtail.users", "wagtail.snippets", "wagtail.documents", "wagtail.images", "wagtail.search"),
    *("wagtail.contrib.forms", "wagtail.contrib.redirects", "wagtail.embeds", "wagtail.admin", "wagtail"),
    *("modelcluster", "taggit", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"),
    *("django.contrib.messages", "django.contrib.staticfiles"),
]
DATABASES = {"default": {"ENGINE": os.environ["ENGINE"], "NAME": os.environ["NAME"]}}
STATIC_URL, WAGTAIL_SITE_NAME, WAGTAILADMIN_BASE_URL = "/static/", "x", "http://x"
WAGTAILSEARCH_BACKENDS = {"default": {"BACKEND": "wagtail.search.backends.database"}}
urlpatterns = []
"""
USE = """
import json
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from wagtail.models import Page
from wagtail.search.backends import get_search_backend
home = Page.objects.get(depth=2)
for number, title in enumerate(["Alpha beta", "Beta gamma dogs", "Running dogs and cats", "Gamma delta"]):
    home.add_child(instance=Page(title=title, slug=f"p{number}"))
call_command("update_index", verbosity=0)
backend = get_search_backend()
def titles(words):
    return sorted(page.title for page in backend.search(words, Page))
found = [type(backend).__module__, titles("beta"), titles("dogs"), titles("gamma")]
found.append(sorted(page.title for page in Page.objects.autocomplete("run")))
page = Page.objects.get(slug="p0")
page.title = "Zebra"
page.save()
Page.objects.get(slug="p3").delete()
print(json.dumps([*found, titles("beta"), titles("zebra"), titles("gamma")]))
"""


async def use(folder: Path, engine: str, name: str) -> list[object]:
    """Migrate a database, fill it with pages and search in them; return the results."""
    (folder / "settings.py").write_text(SETTINGS)
    given = {"DJANGO_SETTINGS_MODULE": "settings", "ENGINE": engine, "NAME": name, "PYTHONPATH": str(folder)}
    with trio.fail_after(600):
        done = await trio.run_process([sys.executable, "-c", USE], env=os.environ | given, capture_stdout=True)
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


async def test_wagtail_migrates_and_finds_the_same_as_on_sqlite(tmp_path: Path) -> None:
    expected = await use(tmp_path, "django.db.backends.sqlite3", str(tmp_path / "plain.db"))
    assert "sqlite" in str(expected[0])
    with local_cluster(tmp_path / "own", ("A", "B", "C")) as running:
        for index in range(3):
            await running.wait_ready(index)
        assert await use(tmp_path, "bedrockish.django", running.url(0, only=True)) == expected
