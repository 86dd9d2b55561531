"""``DACEOPT_LOGS``: shows chosen parts of daceopt's log on stderr, through the standard ``logging`` module."""

from __future__ import annotations

import logging
import os
import sys

from daceopt.errors import did_you_mean

ARTIFACTS = ("dispatch", "importer", "pipeline", "recipe", "build", "cache")


def configure() -> None:
    """Read ``DACEOPT_LOGS``: names from ``ARTIFACTS`` between commas, or ``all``; a ``+`` before a name also shows
    its details.
    """
    for item in filter(None, (part.strip() for part in os.environ.get("DACEOPT_LOGS", "").split(","))):
        name, level = item.lstrip("+"), logging.DEBUG if item.startswith("+") else logging.INFO
        if name != "all" and name not in ARTIFACTS:
            expected = f"expected all, {', '.join(ARTIFACTS)}{did_you_mean(name, ('all', *ARTIFACTS))}"
            sys.stderr.write(f"daceopt: DACEOPT_LOGS names {name!r}; {expected}\n")
            continue
        for artifact in ARTIFACTS if name == "all" else (name,):
            _show(logging.getLogger(f"daceopt.{artifact}"), level)


def _show(logger: logging.Logger, level: int) -> None:
    logger.setLevel(level)
    if any(getattr(h, "daceopt", False) for h in logger.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    handler.daceopt = True  # type: ignore[attr-defined]
    logger.addHandler(handler)
    logger.propagate = False


def caller_depth() -> int:
    """Frames from the caller's ``warnings.warn`` to the first one outside daceopt and PyTorch: the user's call."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] in ("daceopt", "torch"):
        depth, frame = depth + 1, frame.f_back
    return depth
