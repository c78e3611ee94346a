"""The commands in docs/operating.md exist, with their options and numbers of arguments."""

import re
import shlex

import click
import pytest

from bedrockish.cli.main import main
from bedrockish.cli.url import url_of
from tests.test_tidy import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
QUOTED = [line for line in re.findall(r"`(bedrockish [^`]*)`", PAGE) if len(line.split()) > 2]


LINES = [part.strip() for block in BLOCKS for line in block.splitlines() for part in line.split("&&")]
OTHERS = [line for line in LINES if line.startswith("restic ")]  # another project's program


def test_page_names_commands_of_bedrockish_and_restic_only() -> None:
    assert OTHERS
    assert all(line.startswith("bedrockish ") for line in [*LINES, *QUOTED] if line not in OTHERS)


@pytest.mark.parametrize("line", [line for line in [*LINES, *QUOTED] if line not in OTHERS])
def test_each_command_on_the_operating_page_is_valid(line: str) -> None:
    """Parse the command as the program would, without running it."""
    program, *words = shlex.split(re.sub(r"\bURL\b", "bedrockish://host1:7373", line))
    assert program == "bedrockish"
    command: click.Command = main
    context = click.Context(main, info_name=program)
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None, line
        command, context = found, click.Context(found, context, info_name=found.name)
    command.parse_args(context, words)


def test_status_waits_briefly_for_a_member_that_the_others_do_not_hear() -> None:
    """``status`` stops waiting for such a member early, unless the user has set a time."""
    away, here = ({"address": "h:1", "up": up} for up in (False, True))
    assert url_of("bedrockish://u@a:1,b:2/?discover=yes&ca=x", here) == "bedrockish://u@h:1/?ca=x"
    assert url_of("bedrockish://u@a:1,b:2/?ca=x", away) == "bedrockish://u@h:1/?ca=x&connect_timeout=1"
    assert url_of("bedrockish://a:1/?connect_timeout=9", away) == "bedrockish://h:1/?connect_timeout=9"
