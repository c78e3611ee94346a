"""``bedrockish user``: see and change the users of the cluster; every change is one transaction, at any node."""

import click
import trio

from bedrockish.api.requests import USER_ADD, USER_GRANT, USER_PASSWORD, USER_REMOVE, USER_REVOKE, MemberChange
from bedrockish.cli.member import change_members, show
from bedrockish.cli.options import json_option
from bedrockish.cli.secure import ask_hash
from bedrockish.cli.upkeep import duration
from bedrockish.cli.url import UrlGroup
from bedrockish.client.blocking import connect
from bedrockish.client.trio_client import open_client
from bedrockish_journal.model.membership import ROLES

USERS = "SELECT user_name, role, tables FROM bedrockish_users ORDER BY 1"

force_option = click.option("--force", is_flag=True, help="Make the change even if it leaves no admin.")
table_option = click.option("--table", default="", help="For this table only: reader or writer.")
role_argument = click.argument("role", type=click.Choice(ROLES))


@click.group(cls=UrlGroup)
def user() -> None:
    """Show and change the users of the cluster.

    URL names one or more nodes of the cluster. Roles, each with the rights of the roles before: reader (reads), writer
    (changes rows), owner (changes the schema), admin (changes members and users, copies files and shortens the
    journal). Passwords are the first line of standard input, or are asked for; only their hashes leave this program.
    """


@user.command("list")
@json_option
def list_users(url: str, as_json: bool) -> None:
    """Print the users and their roles."""
    with connect(url) as connection:
        show(connection.execute(USERS), as_json=as_json)


@user.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), help="By default none, which gives no rights.")
@force_option
def add(url: str, name: str, role: str | None, force: bool) -> None:
    """Add the user NAME. The first one must be an admin; from then on every client has to be a user."""
    change_members(url, MemberChange(USER_ADD, name, role=role or "", secret=ask_hash(), force=force))


@user.command()
@click.argument("name")
def passwd(url: str, name: str) -> None:
    """Give NAME another password. Every user may change their own password."""
    change_members(url, MemberChange(USER_PASSWORD, name, secret=ask_hash()))


@user.command()
@click.argument("name")
@role_argument
@table_option
def grant(url: str, name: str, role: str, table: str) -> None:
    """Give NAME at least ROLE."""
    change_members(url, MemberChange(USER_GRANT, name, role=role, table=table))
    if table:
        told = _odd_table(url, table)
        if told:
            click.echo(told, err=True)


def _odd_table(url: str, table: str) -> str:
    """Return a warning about a role for a table that may be a mistake; the role is granted nevertheless."""
    query = "SELECT type FROM sqlite_schema WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
    with connect(url) as connection:
        rows = connection.execute(query, [table]).rows
    if not rows:
        return f"there is no table {table} now: the role is for the next one of that name"
    if rows[0][0] == "view":
        return f"{table} is a view, and roles for views have no effect; grant them for the tables that it reads"
    return ""


@user.command()
@click.argument("name")
@role_argument
@table_option
@force_option
def revoke(url: str, name: str, role: str, table: str, force: bool) -> None:
    """Take ROLE, and the roles that include it, from NAME; lower roles and roles for other tables stay."""
    change_members(url, MemberChange(USER_REVOKE, name, role=role, force=force, table=table))


@user.command()
@click.argument("name")
@force_option
def remove(url: str, name: str, force: bool) -> None:
    """Remove the user NAME, at once and at every node, even if a node's configuration has the name."""
    change_members(url, MemberChange(USER_REMOVE, name, force=force))


@user.command()
@click.argument("name")
@click.option(
    "--for", "for_s", callback=duration, default="1h", show_default=True, help="How long it is valid: 1h, 7d."
)
def token(url: str, name: str, for_s: float) -> None:
    """Print a token with which NAME can log in wherever a password is taken. Users may make their own tokens.

    A token ends with its time, and when NAME gets another password or is removed.
    """

    async def ask() -> str:
        async with open_client(url) as client:
            return str((await client.upkeep({"do": "token", "user": name, "for_s": for_s}))["token"])

    click.echo(trio.run(ask))
