"""Settings of Django's own tests: two clusters, whose tables are dropped."""

import os

CLUSTERS = os.environ["SUITE_CLUSTERS"].split()


def _database(place: int) -> dict[str, object]:
    # A program would use NAME; the tests use the cluster that TEST names.
    return {"ENGINE": "bedrockish.django", "NAME": "bedrockish://127.0.0.1:1", "TEST": {"NAME": CLUSTERS[place]}}


DATABASES = {"default": _database(0), "other": _database(1)}
SECRET_KEY = "for tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "tools.compliance.django_runner.Runner"
