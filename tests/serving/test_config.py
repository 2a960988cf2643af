import pytest

from distill.errors import UserError
from distill.serving.config import ExportConfig


def test_a_type_that_servers_do_not_load_is_refused():
    with pytest.raises(UserError, match=r"export\.dtype=int8 is unknown: use one of bfloat16"):
        ExportConfig("int8")
