"""Where runs and versions are recorded. Nothing heavy is imported here."""

import re
from dataclasses import dataclass, replace

from distill.errors import UserError

MODEL_NAME = re.compile(r"(?!\.+$)[^/:%@\"'\x00-\x1f]+")
"""What MLflow's registry takes, and what a `models:/…` URI and a search filter can quote."""
ALIAS = re.compile(r"\w[\w-]*")
RESERVED_ALIAS = re.compile(r"latest|v\d+", re.IGNORECASE)


@dataclass
class TrackingConfig:
    """MLflow. `uri: null` is a SQLite file in the output root."""

    uri: str | None = None
    experiment: str = "distill"
    registered_model: str | None = None
    """null: the target's name with `-draft` behind it."""
    alias: str = "champion"

    def __post_init__(self) -> None:
        name = self.registered_model
        if name is not None and not MODEL_NAME.fullmatch(name):
            raise UserError(
                f"tracking.registered_model={name}: a name in MLflow's registry has no '/', ':', "
                "'@', '%' and no quotes; use '-' instead"
            )
        if not ALIAS.fullmatch(self.alias) or RESERVED_ALIAS.fullmatch(self.alias):
            raise UserError(
                f"tracking.alias={self.alias}: MLflow takes letters, digits, '_' and '-', and "
                "keeps 'latest' and 'v' with a number for itself; use another, such as champion"
            )

    def for_target(self, name: str) -> "TrackingConfig":
        """The same, with a name for the registered model where that is null."""
        if self.registered_model is not None:
            return self
        plain = re.sub(r"[^\w.-]+", "-", name.rstrip("/").rpartition("/")[2])
        return replace(self, registered_model=f"{plain}-draft")
