"""Events of ``torch.profiler`` that are no operators of PyTorch's."""

from __future__ import annotations

import torch
from torch.autograd import profiler as _profiler

from daceopt.torch_internals.release import private_names

with private_names():
    # A block that is an event of this name, as an operator is one
    ProfilerEvent = torch._C._profiler._RecordFunctionFast

    _ = _profiler._is_profiler_enabled

# ``PROFILERS[ACTIVE]``: whether a profiler runs. To look here takes 20 ns in each call, to ask PyTorch's C++ half 90
PROFILERS, ACTIVE = vars(_profiler), "_is_profiler_enabled"
