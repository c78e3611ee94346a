"""The database features of Django, on a cluster: ``python -m tests.django_site.features URL``.

Each line tests a feature that needs SQL, Python functions of the nodes, or transactions.
"""

import datetime
import decimal
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
from django.conf import settings


def main(url: str) -> None:
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "tests.django_site.shop"],
        DATABASES={"default": {"ENGINE": "bedrockish.django", "NAME": url}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    _queries()
    _transactions()
    _fixtures()
    _composite_keys()
    print("done")


def _queries() -> None:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.db.models import Avg, Count, DurationField, ExpressionWrapper, F, StdDev, Sum, Value
    from django.db.models import functions as sql
    from django.utils import timezone

    User.objects.all().delete()
    now = timezone.now().replace(microsecond=0)
    for number in range(4):
        name = f"User{number}"
        joined = now - datetime.timedelta(days=40 * number)
        User.objects.create(username=name, first_name="Ann" if number % 2 else "Bob", date_joined=joined)
    users = User.objects.all()
    assert users.filter(date_joined__year=now.year).count() >= 1
    assert users.filter(date_joined__date=now.date()).count() == 1
    assert users.filter(date_joined__hour=now.hour).count() >= 1
    months = users.annotate(m=sql.TruncMonth("date_joined")).values("m").annotate(c=Count("id")).order_by("m")
    assert sum(one["c"] for one in months) == 4
    assert months[0]["m"].tzinfo is not None
    assert len(User.objects.datetimes("date_joined", "day")) == 4
    assert users.filter(username__regex="^User[01]$").count() == 2
    assert users.filter(username__iregex="^uSER").count() == 4
    assert users.filter(username__icontains="SER3").get().username == "User3"
    first = users.order_by("id").first()
    assert first is not None
    found = users.aggregate(sum=Sum("id"), avg=Avg("id"), dev=StdDev("is_active"))
    assert found["dev"] == 0
    row = users.annotate(
        padded=sql.LPad("username", 8, Value("-")), back=sql.Reverse("username"), digest=sql.MD5("username")
    ).get(username="User1")
    assert (row.padded, row.back) == ("---User1", "1resU")
    assert users.filter(username__regex="1$").update(email=sql.Reverse("username")) == 1
    assert users.get(email="1resU").username == "User1"
    assert len(row.digest) == 32
    age = ExpressionWrapper(Value(now) - F("date_joined"), output_field=DurationField())
    assert users.annotate(age=age).get(username="User2").age == datetime.timedelta(days=80)
    later = users.annotate(later=F("date_joined") + datetime.timedelta(days=1)).get(username="User0").later
    assert later == now + datetime.timedelta(days=1)
    assert users.order_by("?").first() is not None
    assert len(User.objects.bulk_create([User(username=f"many{n}") for n in range(500)])) == 500
    assert len({one.pk for one in User.objects.iterator(chunk_size=100)}) == 504
    assert User.objects.filter(username__startswith="many").update(first_name=F("username")) == 500
    assert User.objects.filter(first_name__startswith="many").delete()[0] == 500
    assert User.objects.get_or_create(username="User0")[1] is False
    assert User.objects.update_or_create(username="User0", defaults={"last_name": "Last"})[0].last_name == "Last"
    assert "SCAN" in users.explain() or "SEARCH" in users.explain()
    assert not [one for one in connection.introspection.table_names() if one.startswith("bedrockish")]
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s, %s, '100%%'", [decimal.Decimal("1.50"), "x"])
        assert cursor.fetchone() == ("1.50", "x", "100%")
        cursor.execute("SELECT %(a)s", {"a": str(uuid.UUID(int=1))})
        assert cursor.fetchone() == (str(uuid.UUID(int=1)),)
    _raw_values()


def _raw_values() -> None:
    """Return values as text, or, for a connection with declared types, as SQLite's backend gives them."""
    from django.db import connection, connections

    import bedrockish.dbapi

    typed = connections.create_connection("default")
    typed.settings_dict = {**typed.settings_dict, "OPTIONS": {"detect_types": bedrockish.dbapi.PARSE_DECLTYPES}}
    for each, kinds in ((connection, (int, str)), (typed, (bool, datetime.datetime))):
        with each.cursor() as cursor:
            cursor.execute("SELECT is_active, date_joined FROM auth_user LIMIT 1")
            assert tuple(map(type, cursor.fetchone())) == kinds
    typed.close()


def _fixtures() -> None:
    """``loaddata`` loads what ``dumpdata`` wrote, rows before those that they refer to, and refuses broken keys."""
    from django.core.management import call_command
    from django.db import IntegrityError

    from tests.django_site.shop.models import Author, Book

    Author.objects.all().delete()  # a migration has made one
    Book.objects.create(author=Author.objects.create(name="Ann"), title="First")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "shop.json")
        call_command("dumpdata", "shop", output=str(path), verbosity=0)
        rows = sorted(json.loads(path.read_text()), key=lambda row: row["model"] == "shop.author")
        Author.objects.all().delete()
        for loaded in (rows, [row for row in rows if row["model"] == "shop.book"]):
            path.write_text(json.dumps(loaded))
            try:
                call_command("loaddata", str(path), verbosity=0)
            except IntegrityError:
                assert loaded is not rows
            else:
                assert loaded is rows
                assert [(book.title, book.author.name) for book in Book.objects.all()] == [("First", "Ann")]
                Author.objects.all().delete()
    assert not Book.objects.exists()


def _transactions() -> None:
    from django.contrib.auth.models import User
    from django.db import IntegrityError, OperationalError, connections, transaction

    from bedrockish.django import run_transaction

    try:
        with transaction.atomic():
            User.objects.filter(username="User1").update(last_name="outer")
            taken = _raised(IntegrityError, lambda: User.objects.create(username="User2"))
            assert taken.sqlite_errorname == "SQLITE_CONSTRAINT_UNIQUE"
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert User.objects.get(username="User1").last_name == ""
    seen = []
    transaction.on_commit(lambda: seen.append(1))
    assert seen == [1]
    tries = []

    def elsewhere(sql: str) -> None:
        other = connections.create_connection("default")
        other.ensure_connection()
        with other.cursor() as cursor:
            cursor.execute(sql)
        other.close()

    def contended() -> None:
        user = User.objects.get(username="User3")
        tries.append(user.last_name)
        if len(tries) == 1:  # another session changes the row in between
            elsewhere("UPDATE auth_user SET last_name = 'other' WHERE username = 'User3'")
        user.last_name += "+mine"
        user.save()

    run_transaction(contended)
    assert (tries, User.objects.get(username="User3").last_name) == (["", "other"], "other+mine")
    held = []

    def holds() -> None:
        """Read a row for update, while another transaction changes the row: the two conflict."""
        held.append(
            [one.last_name for one in User.objects.select_for_update().filter(username="User2").order_by("id")[:1]]
        )
        if len(held) == 1:
            elsewhere("UPDATE auth_user SET last_name = 'taken' WHERE username = 'User2'")

    run_transaction(holds)
    assert held == [[""], ["taken"]]
    with transaction.atomic():
        assert "auth_user" in User.objects.select_for_update().explain()
    try:
        list(User.objects.select_for_update())
        raise AssertionError("a query for update outside of a transaction holds nothing")
    except transaction.TransactionManagementError:
        pass
    missing = _raised(OperationalError, lambda: User.objects.raw("SELECT * FROM nowhere")[0])
    assert "no such table" in str(missing)


def _composite_keys() -> None:
    """``update_or_create`` selects the row for update, by both columns of its key."""
    from django.db import connection, models

    class Stock(models.Model):
        pk = models.CompositePrimaryKey("shop", "item")
        shop = models.IntegerField()
        item = models.IntegerField()
        count = models.IntegerField()

        class Meta:
            app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Stock)
    Stock.objects.create(shop=1, item=2, count=3)
    for item, count in ((2, 4), (3, 5)):
        Stock.objects.update_or_create(pk=(1, item), defaults={"count": count})
    assert list(Stock.objects.order_by("item").values_list("item", "count")) == [(2, 4), (3, 5)]
    with connection.schema_editor() as editor:
        editor.delete_model(Stock)


def _raised(kind: type[Exception], use: Callable[[], object]) -> Any:
    """Return the database's error for a statement that it refused in a block."""
    from django.db import transaction

    try:
        with transaction.atomic():
            use()
    except kind as error:
        return error.__cause__
    raise AssertionError("it was not refused")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    main(*sys.argv[1:])
