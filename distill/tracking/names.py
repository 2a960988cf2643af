"""Names that come from data, as MLflow takes them for the key of a metric or a parameter."""

import hashlib
import re

LONGEST = 250
"""Characters that MLflow takes in the key of a metric or a parameter."""
FOREIGN = re.compile(r"[^\w\-./: ]")
STEP = re.compile(r"\.?$|\.\.")
"""MLflow takes a key for a path as well: no part of it may be empty, `.`, or begin with `..`."""


def mlflow_key(name: str) -> str:
    """The name itself where MLflow takes it as a key, else one that is mended and marked.

    A mended key ends with eight digits of the name's hash, so that two names stay apart that are
    mended alike.
    """
    parts = FOREIGN.sub("_", name).split("/")
    mended = "/".join(f"_{part.lstrip('.')}" if STEP.match(part) else part for part in parts)
    if mended == name and len(name) <= LONGEST:
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{mended[: LONGEST - len(mark) - 1]}-{mark}"
