"""``optimized_module``: compiled forward and backward for an ``nn.Module`` that stays the module it was.

Only ``forward`` is replaced, on the instance or on the class. PyTorch's own ``__call__`` runs around it, and
everything that a program reads is fetched from the module at each call.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from daceopt.dispatch import Dispatcher, Stats
from daceopt.errors import Unsupported
from daceopt.specialise import Options

if TYPE_CHECKING:
    import dace

    from daceopt.explore import Report
    from daceopt.recipe import Recipe

_STATE = "_daceopt_dispatcher"  # where an instance of a decorated class keeps its dispatcher
_creating = threading.Lock()
_FALLBACKS = ("warn", "raise", "silent")
_VERIFICATIONS = (None, "structure", "numerics")


def optimized_module(
    model: Any = None,
    /,
    *,
    recipe: str | Recipe = "auto",
    backward: bool | None = None,
    dynamic: Any = None,
    fallback: str = "warn",
    verify: str | None = None,
) -> Any:
    """Compile the calls of a module, or of every instance of a class; returns that very module or class.

    recipe    name of a recipe, or a ``daceopt.Recipe``
    backward  None: when a parameter or input requires a gradient; True: always; False: never (results have no grad)
    dynamic   None: compile for the sizes seen, and generalise those that change; or dimensions as for ``torch.export``
    fallback  what happens to a call that cannot be compiled: "warn" runs it in eager PyTorch and warns once per reason,
              "silent" runs it quietly, "raise" raises the reason (a ``daceopt.errors.DaceoptError``)
    verify    None, "structure" or "numerics": checks between the steps of the recipe

    Also a decorator, with or without arguments. Raises TypeError for anything but a module or a class of modules,
    ValueError for options that do not exist.
    """
    _check(fallback, _FALLBACKS, "fallback")
    _check(verify, _VERIFICATIONS, "verify")
    options = Options(recipe, backward, dynamic, fallback, verify)
    if model is None:
        return functools.partial(_optimize, options=options)
    return _optimize(model, options)


def _check(value: object, allowed: tuple[object, ...], name: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(map(repr, allowed))}")


def _optimize(model: Any, options: Options) -> Any:
    if isinstance(model, type) and issubclass(model, nn.Module):
        return _optimize_class(model, options)
    if isinstance(model, nn.Module):
        return _optimize_instance(model, options)
    raise TypeError(f"optimized_module takes an nn.Module or a class of modules, not {type(model).__name__}")


class OptimizedForward:
    """The ``forward`` of one optimized instance."""

    def __init__(self, module: nn.Module, own: Callable[..., Any] | None, dispatcher: Dispatcher) -> None:
        self.module, self.dispatcher = module, dispatcher
        self._own = own  # a forward that was set on the instance before; otherwise the class's

    @property
    def daceopt_original(self) -> Callable[..., Any]:
        """The forward that this one stands for."""
        if self._own is not None:
            return self._own
        forward = type(self.module).forward
        return types.MethodType(getattr(forward, "daceopt_original", forward), self.module)

    __wrapped__ = daceopt_original  # so that inspect.signature shows the user's parameters

    @property
    def __code__(self) -> Any:  # torch.export asks a module's forward for it
        return self.daceopt_original.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.dispatcher.call(self.module, self.daceopt_original, args, kwargs)


def _optimize_instance(model: nn.Module, options: Options) -> nn.Module:
    own = model.__dict__.get("forward")
    if isinstance(own, OptimizedForward):
        own = own._own
    dispatcher = Dispatcher(options)
    # Past nn.Module.__setattr__: neither is a parameter, a buffer or a submodule.
    model.__dict__["forward"] = OptimizedForward(model, own, dispatcher)
    model.__dict__["daceopt"] = Handle(model, dispatcher)
    return model


def _optimize_class(cls: type[nn.Module], options: Options) -> type[nn.Module]:
    _wrap_forward(cls, options)
    inherited = cls.__dict__.get("__init_subclass__")

    def init_subclass(sub: type[nn.Module], **kwargs: Any) -> None:
        if inherited is not None:
            inherited.__func__(sub, **kwargs)
        else:
            super(cls, sub).__init_subclass__(**kwargs)
        if "forward" in sub.__dict__:
            _wrap_forward(sub, options)

    cls.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    cls.daceopt = property(lambda self: _handle(self, options))
    return cls


def _wrap_forward(cls: type[nn.Module], options: Options) -> None:
    original = getattr(cls.forward, "daceopt_original", cls.forward)

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # A subclass that overrides forward and calls super().forward() is compiled as a whole; exporters see Python.
        if type(self).forward is not forward or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        return _dispatcher(self, options).call(self, types.MethodType(original, self), args, kwargs)

    forward.daceopt_original = original  # type: ignore[attr-defined]
    cls.forward = forward


def _handle(module: nn.Module, options: Options) -> Handle:
    """The handle of an instance of an optimized class, which may have been optimized again with options of its own."""
    forward = module.__dict__.get("forward")
    own = isinstance(forward, OptimizedForward)
    return Handle(module, forward.dispatcher if own else _dispatcher(module, options))


def _dispatcher(module: nn.Module, options: Options) -> Dispatcher:
    """The instance's own dispatcher; one that came with a copied ``__dict__`` (copy.copy, replicas) does not count."""
    found = module.__dict__.get(_STATE)
    if found is not None and found.owner is not None and found.owner() is module:
        return found
    with _creating:
        current = module.__dict__.get(_STATE)
        if current is found:  # no other thread was faster
            current = Dispatcher(options if found is None else found.options, module)
            module.__dict__[_STATE] = current
        return current


class Handle:
    """What daceopt knows about one module: ``model.daceopt``."""

    def __init__(self, module: nn.Module, dispatcher: Dispatcher) -> None:
        self._module, self._dispatcher = module, dispatcher

    @property
    def sdfg(self) -> dace.SDFG:
        """The forward graph of the program compiled last. Raises Unsupported when there is none."""
        return self._pair().graphs.forward.sdfg

    @property
    def backward_sdfg(self) -> dace.SDFG | None:
        """Its backward graph, or None for a program without one."""
        backward = self._pair().graphs.backward
        return None if backward is None else backward.sdfg

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per step of the recipe: name, sites, seconds, bytes moved before and after."""
        return list(self._pair().report["history"])

    @property
    def stats(self) -> Stats:
        """Calls, eager calls, programs and seconds of compilation so far."""
        return self._dispatcher.stats

    @property
    def reasons(self) -> dict[str, int]:
        """Why calls ran in eager PyTorch, and how many for each reason."""
        return dict(self._dispatcher.reasons)

    @property
    def options(self) -> Options:
        """What ``optimized_module`` was called with."""
        return self._dispatcher.options

    def explain(self, *inputs: Any, **kwargs: Any) -> Report:
        """``daceopt.explain`` of this module on the arguments of a call."""
        import daceopt

        return daceopt.explain(self._module, *inputs, **kwargs)

    def _pair(self) -> Any:
        latest = self._dispatcher.latest
        if latest is None:
            why = "; ".join(self._dispatcher.reasons) or "it has not been called yet"
            raise Unsupported(f"{type(self._module).__name__} has no compiled program: {why}")
        return latest.program.pair

    def __repr__(self) -> str:
        s = self.stats
        return f"<daceopt: {s.programs} programs, {s.calls} calls, {s.eager_calls} of them eager>"
