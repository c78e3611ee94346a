"""Django's command line for this site: ``python -m tests.django_site.manage URL migrate [shop 0001]``."""

import sys

import django
from django.conf import settings
from django.core.management import call_command


def main(url: str, *command: str) -> None:
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "tests.django_site.shop"],
        DATABASES={"default": {"ENGINE": "bedrockish.django", "NAME": url}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
    call_command(*command)


if __name__ == "__main__":
    main(*sys.argv[1:])
