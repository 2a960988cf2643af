"""What is exported. Nothing heavy is imported here."""

from dataclasses import dataclass

from distill.errors import UserError

DTYPES = ("bfloat16", "float16", "float32")
"""Types of exported weights that servers load."""


@dataclass
class ExportConfig:
    """The exported draft's folder."""

    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UserError(
                f"export.dtype={self.dtype} is unknown: use one of {', '.join(DTYPES)}."
            )
