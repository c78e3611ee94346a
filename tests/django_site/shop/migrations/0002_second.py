"""Rebuilt tables with references to them, and rows that are read and written in between."""

from typing import Any

from django.db import migrations, models, transaction
from django.db.utils import IntegrityError


def rank(apps: Any, editor: Any) -> None:
    authors = apps.get_model("shop", "Author").objects
    for author in authors.order_by("name"):
        author.rank = author.book_set.count()
        author.save()
    try:
        with transaction.atomic(using=editor.connection.alias):
            authors.create(id=authors.get(name="Ann").id, name="twice")
    except IntegrityError:
        authors.get_or_create(name="Ben", defaults={"rank": 1})


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_first")]
    operations = [
        migrations.AddField("Author", "rank", models.IntegerField(default=0)),
        migrations.RunPython(rank, migrations.RunPython.noop),
        migrations.AlterField("Author", "name", models.CharField(max_length=80, unique=True)),
        migrations.RenameField("Book", "name", "title"),
        migrations.AlterField("Book", "title", models.CharField(max_length=200, default="")),
        migrations.AlterField("Book", "pages", models.PositiveIntegerField(default=1)),
        migrations.AddIndex("Book", models.Index(fields=["title"], name="by_title")),
        migrations.RunSQL("UPDATE shop_book SET pages = pages + 1", migrations.RunSQL.noop),
    ]
