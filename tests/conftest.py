"""Before any test module imports torch; and what one test's Hydra run leaves behind."""

import logging

import pytest

from distill.process import settle

settle()


@pytest.fixture(autouse=True)
def loggers_on() -> None:
    """Hydra's `disabled` logging switches off loggers that exist when it is configured."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("distill") and isinstance(logger, logging.Logger):
            logger.disabled = False
