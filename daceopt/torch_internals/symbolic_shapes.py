"""Symbols of a trace: sizes that only data decide, and where in a value they are found."""

from __future__ import annotations

from daceopt.torch_internals.release import private_names

with private_names():
    from torch.fx.experimental.symbolic_shapes import CallMethodKey as CallMethodKey
    from torch.fx.experimental.symbolic_shapes import ConvertIntKey as ConvertIntKey
    from torch.fx.experimental.symbolic_shapes import DivideByKey as DivideByKey
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols as free_unbacked_symbols
    from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
