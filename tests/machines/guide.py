"""The commands of docs/guide/several-machines.md, so that the tests follow it to the letter."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/guide/several-machines.md"


def command(begin):
    """The first command of the page that begins so."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = (line for block in blocks for line in block.splitlines())
    found = next((line for line in lines if line.startswith(begin)), None)
    assert found is not None, f"{PAGE.name} has no command `{begin}…`"
    return found


def service_command():
    """The command of the unit for systemd."""
    return command("ExecStart=").removeprefix("ExecStart=")
