"""daceopt optimizes PyTorch modules and ONNX models as dataflow graphs; public names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from daceopt._version import __version__
from daceopt.logs import configure as _configure_logs

if TYPE_CHECKING:
    from daceopt.distributed.runtime.data_parallel import data_parallel as data_parallel
    from daceopt.explore.session.session import explore as explore
    from daceopt.modules.module import optimized_module as optimized_module
    from daceopt.passes.recipe import Recipe as Recipe
    from daceopt.passes.transform import Transformation as Transformation
    from daceopt.standalone.stored_program import load as load
    from daceopt.training.training_step import training_step as training_step

# Public name -> (module, attribute); no attribute: the module itself.
_NAMES: dict[str, tuple[str, str | None]] = {
    "optimized_module": ("daceopt.modules.module", "optimized_module"),
    "training_step": ("daceopt.training.training_step", "training_step"),
    "data_parallel": ("daceopt.distributed.runtime.data_parallel", "data_parallel"),
    "from_onnx": ("daceopt.models.onnx_model", "from_onnx"),
    "from_sdfg": ("daceopt.models.sdfg_program", "from_sdfg"),
    "load": ("daceopt.standalone.stored_program", "load"),
    "export": ("daceopt.standalone.export", None),
    "explain": ("daceopt.explore", "explain"),
    "simulate": ("daceopt.explore", "simulate"),
    "view": ("daceopt.programs.sdfg_view", "view"),
    "explore": ("daceopt.explore", None),
    "Transformation": ("daceopt.passes.transform", "Transformation"),
    "Recipe": ("daceopt.passes.recipe", "Recipe"),
    "recipes": ("daceopt.recipes", None),
    "transformations": ("daceopt.transformations", None),
    "cost": ("daceopt.cost", None),
    "onnx_backend": ("daceopt.onnx_backend", None),
}

__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'daceopt' has no attribute {name!r}")
    module, attribute = _NAMES[name]
    loaded = importlib.import_module(module)
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


_configure_logs()
