"""What Dynamo is told for our frames, it is told while it looks at them only."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._dynamo import config

from daceopt import optimized_module
from tests.twins import module, normal

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _programs(interpreted):
    SEEN.clear()


@torch.compiler.disable
def _look(x):
    warnings.warn("The .grad attribute of a Tensor that is not a leaf, says the user", UserWarning, stacklevel=1)
    SEEN.append((config.allow_rnn, config.skip_nnmodule_hook_guards, config.suppress_errors))
    return x


def test_the_model_s_own_code_runs_under_its_own_settings():
    net = optimized_module(module(lambda self, x: _look(x.sin()).cos()), fallback="silent")
    outside = (config.allow_rnn, config.skip_nnmodule_hook_guards, config.suppress_errors)
    for _ in range(3):
        with pytest.warns(UserWarning, match="says the user"):
            torch.testing.assert_close(net(normal(3)), normal(3).sin().cos())
    assert [outside] * 3 == SEEN
    assert net.daceopt.stats.programs == 2


def test_recurrent_layers_are_compiled():
    net = optimized_module(torch.nn.GRU(3, 3), fallback="raise")
    assert net(torch.randn(2, 1, 3))[0].shape == (2, 1, 3)
    assert net.daceopt.stats.programs == 1
