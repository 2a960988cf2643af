"""Text of others is shown, never obeyed."""

import pytest

from distill.text import one_line, printable


@pytest.mark.parametrize("bad", ["\x1b[31m", "\x00", "\r", "\x07", "\x9b", "\ud800"])
def test_no_control_character_reaches_a_terminal(bad):
    assert bad[0] not in printable(f"a{bad}b")
    printable(f"a{bad}b").encode()


def test_one_line_of_many():
    assert one_line("a\n  b\r\n\nc\td") == "a b c\td"
    assert printable("ä 日本 🙂\n") == "ä 日本 🙂\n"
