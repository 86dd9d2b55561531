"""What forward says is said as in eager PyTorch; what it would not say costs no graph."""

from __future__ import annotations

import functools
import logging
import time
import warnings

import pytest
import torch

from daceopt import optimized_module
from tests.twins import module

LOGGER = logging.getLogger("tests.modules.of_a_model")
ADAPTER = logging.LoggerAdapter(LOGGER, {})


@pytest.fixture(autouse=True)
def _programs(interpreted, caplog):
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.WARNING, LOGGER.name)


def _debug(self, x):
    h = torch.tanh(x)
    LOGGER.debug("h is %s", h)
    return h.exp()


def _log(self, x):
    h = torch.tanh(x)
    LOGGER.log(logging.INFO, "h is %s", h)
    return h.exp()


def _enabled(self, x):
    h = torch.tanh(x)
    if LOGGER.isEnabledFor(logging.DEBUG):
        LOGGER.debug("h is %s", h.sum())
    return h.exp()


def _root(self, x):
    h = torch.tanh(x)
    logging.debug("h is %s", h)
    return h.exp()


def _adapter(self, x):
    h = torch.tanh(x)
    ADAPTER.info("h is %s", h)
    return h.exp()


@pytest.mark.parametrize("forward", [_debug, _log, _enabled, _root, _adapter])
def test_what_is_not_shown(forward, caplog):
    """One program; where the level changes, the logger speaks, and again when it changes back."""
    net, x = optimized_module(module(forward), fallback="silent"), torch.linspace(-1, 1, 3)
    for _ in range(2):
        torch.testing.assert_close(net(x), torch.tanh(x).exp())
    assert net.daceopt.stats.programs == 1 and not net.daceopt.reasons and not caplog.records
    for level, count in ((logging.DEBUG, 2), (logging.WARNING, 2)):
        caplog.set_level(level)
        caplog.set_level(level, LOGGER.name)
        for _ in range(2):
            torch.testing.assert_close(net(x), torch.tanh(x).exp())
        said = [r for r in caplog.records if r.getMessage().startswith("h is tensor")]
        assert len(said) == count
    assert net.daceopt.stats.programs <= 3 and net.daceopt.stats.eager_calls == 0


@functools.lru_cache
def _warning_once(self, *args, **kwargs):
    self.warning(*args, **kwargs)


class _Logger(logging.Logger):
    """As packages extend loggers."""

    warning_once = _warning_once


def test_what_is_said_once(caplog):
    """A method of a logger behind a cache: one program, which says nothing, since it is said when that is made."""
    logger = _Logger("tests.modules.once")
    logger.addHandler(caplog.handler)

    def forward(self, x, kind="sum"):
        h = torch.tanh(x)
        logger.warning_once(f"no kind, {kind} is taken")
        return h.exp()

    net, x = optimized_module(module(forward), fallback="raise"), torch.linspace(-1, 1, 3)
    for kind in ("sum", "sum", "mean", "sum", "mean"):
        torch.testing.assert_close(net(x, kind), torch.tanh(x).exp())
    assert [r.getMessage() for r in caplog.records] == ["no kind, sum is taken", "no kind, mean is taken"]


def _says(self, x):
    h = torch.tanh(x)
    print("h", h)
    LOGGER.warning("sum %s", h.sum())
    h.mul_(2)
    print("twice", h)
    return h.exp()


def test_what_is_shown(caplog, capsys):
    """In order, with the numbers of its place; nothing of what says it is compiled."""
    net = optimized_module(module(_says), fallback="silent")
    for k in range(4):
        x = torch.linspace(-1, 1, 3) * k
        h = torch.tanh(x)
        torch.testing.assert_close(net(x), (2 * h).exp())
        assert capsys.readouterr().out == f"h {h}\ntwice {h * 2}\n"
        assert caplog.records[-1].getMessage() == f"sum {h.sum()!s}"
    assert net.daceopt.stats.programs <= 4 and net.daceopt.stats.eager_calls == 0


def _warns(self, x):
    begin = time.perf_counter()
    h = torch.tanh(x)
    warnings.warn("careful", UserWarning, stacklevel=1)
    self.spent = time.perf_counter() - begin
    return h.exp()


def test_warnings_and_clocks_leave_pieces():
    net, x = optimized_module(module(_warns), fallback="silent"), torch.ones(3)
    for _ in range(3):
        with pytest.warns(UserWarning, match="careful"):
            torch.testing.assert_close(net(x), torch.tanh(x).exp())
        assert 0 < net.spent < 60
    assert 0 < net.daceopt.stats.programs <= 4 and net.daceopt.stats.eager_calls == 0
