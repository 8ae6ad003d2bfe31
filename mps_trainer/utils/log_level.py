"""Sets the log levels of transformers and of this package."""

from __future__ import annotations

import logging

from transformers.utils import logging as transformers_logging


def set_log_level(level: int, include_own: bool) -> None:
    """Sets the log level of transformers' loggers; with `include_own`, of this package's loggers too."""
    transformers_logging.set_verbosity(level)
    if include_own:
        logging.getLogger(__package__.partition(".")[0]).setLevel(level)
