"""Tables, and rows in them, in one migration."""

from typing import Any

from django.db import migrations, models


def fill(apps: Any, _editor: Any) -> None:
    author = apps.get_model("shop", "Author").objects.create(name="Ann")
    books = apps.get_model("shop", "Book").objects
    books.bulk_create([books.model(author=author, name=f"{n}", pages=n) for n in range(20)])


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel("Author", [("id", models.BigAutoField(primary_key=True)), ("name", models.TextField())]),
        migrations.CreateModel(
            "Book",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("author", models.ForeignKey("shop.Author", models.CASCADE)),
                ("name", models.CharField(max_length=100, null=True)),
                ("pages", models.IntegerField(null=True)),
            ],
        ),
        migrations.RunPython(fill),
    ]
