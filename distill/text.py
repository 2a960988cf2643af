"""Text of others, made fit for a terminal and for one line."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without what a terminal would obey: `\ufffd` for each control character.

    Tabs and line ends stay.
    """
    return _CONTROL.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The printable text with its lines joined by spaces."""
    return printable(" ".join(line.strip() for line in text.splitlines() if line.strip()))
