"""A scope in which the noise of Dynamo (logs, warnings, printed partial graphs) does not reach the user."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator

from daceopt.torch_internals.logger_names import NOISY


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Raise the loggers' thresholds, drop warnings and hold back stderr; what was held back is shown unless an error
    leaves the scope.

    The error carries the reason itself, so the partial graphs that torch prints beside it are dropped.
    """
    held = io.StringIO()
    with warnings.catch_warnings(), _silent_loggers(), contextlib.redirect_stderr(held):
        warnings.simplefilter("ignore")
        yield
    if held.getvalue():
        sys.stderr.write(held.getvalue())


@contextlib.contextmanager
def _silent_loggers() -> Iterator[None]:
    levels = [(logger, logger.level) for logger in _noisy_loggers()]
    for logger, _ in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)


def _noisy_loggers() -> list[logging.Logger]:
    """Each noisy root, and every existing child with a level of its own (torch sets levels on many)."""
    loggers = list(logging.root.manager.loggerDict)
    names = [n for n in loggers if n.startswith(tuple(f"{root}." for root in NOISY))]
    children = [logging.getLogger(n) for n in names]
    return [logging.getLogger(n) for n in NOISY] + [c for c in children if c.level != logging.NOTSET]
