"""``optimized_module``: compiled forward and backward for an ``nn.Module`` that stays the module it was.

Only ``forward`` is replaced, on the instance or on the class. PyTorch's own ``__call__`` runs around it, and
everything that a program reads is fetched from the module at each call.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

import daceopt
from daceopt.codegen.shown import source_of
from daceopt.errors import Unsupported
from daceopt.modules import options as checked
from daceopt.modules import torchscript
from daceopt.modules.breaks import Break
from daceopt.modules.dispatch import Dispatcher
from daceopt.modules.options import Options
from daceopt.programs.plain import plain
from daceopt.programs.stats import Stats

if TYPE_CHECKING:
    import dace
    import numpy as np

    from daceopt.passes.recipe import Recipe
    from daceopt.programs.compiled import CompiledPair

_STATE = "_daceopt_dispatcher"  # where an instance of a decorated class keeps its dispatcher
_OWN = "_daceopt_own"  # a forward that was set on an instance before it was optimized
_ADDED = ("forward", "daceopt", "_replicate_for_data_parallel")  # what an optimized instance has besides
_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)  # their own forwards are about processes and devices
_creating = threading.Lock()

torchscript.install()


def optimized_module(
    model: nn.Module | type[nn.Module] | None = None,
    /,
    *,
    recipe: str | Recipe = "auto",
    backward: bool | None = None,
    dynamic: bool | Mapping[str, object] | Sequence[object] | None = None,
    fallback: str = "warn",
    verify: str | None = None,
    tune: bool | float | str | None = None,
    memory_budget: int | str | None = None,
) -> Any:
    """Compile the calls of a module, or of every instance of a class.

    A module is returned itself. As a decorator the class is; elsewhere the class is left as it was and a subclass of
    the same name is returned. Of a DistributedDataParallel or DataParallel the module inside is compiled.

    recipe    name of a recipe, which may bring ``tune`` and ``memory_budget`` (``"apollo{tune='30s'}"``), or a
              ``daceopt.Recipe``
    backward  None: when a parameter or input requires a gradient; True: always; False: never (results have no grad)
    dynamic   None: compile for the sizes seen, and generalise those that change; True, False; or dimensions as for
              ``torch.export``
    fallback  what happens to parts that cannot be compiled: "warn" runs them in eager PyTorch and warns once per
              reason, "silent" runs them quietly, "raise" raises the reason (a ``daceopt.errors.DaceoptError``)
    verify    None, "structure" or "numerics": checks between the steps of the recipe, and of what was built
    tune      None: the cost model chooses; True, or a budget such as "30s": the first call measures recipes, options of
              their steps and (for the recipe "auto") eager PyTorch; what is fastest is kept in the cache
    memory_budget  None: what is fast; bytes (an integer, or "512MB"), or a share of what eager PyTorch saves for the
              backward ("60%"): what forward and backward may take at once, beside arguments, results and gradients.
              What does not fit is computed again. A call raises MemoryBudgetError where that is impossible

    Also a decorator, with or without arguments. Raises TypeError for anything but a module or a class of modules, and
    for options of the wrong type, ValueError for options that do not exist.
    """
    options = checked.check(recipe, backward, dynamic, fallback, verify, tune, memory_budget)
    if model is None:
        return functools.partial(_optimize, options=options)
    return _optimize(model, options)


def _optimize(model: object, options: Options) -> object:
    if isinstance(model, type) and issubclass(model, nn.Module):
        return _optimize_class(model, options)
    if isinstance(model, nn.Module):
        return _optimize_instance(model, options)
    raise TypeError(f"optimized_module takes an nn.Module or a class of modules, not {type(model).__name__}")


# -------------------------------------------------------------------- instances


class OptimizedForward:
    """The ``forward`` of one optimized instance."""

    def __init__(self, module: nn.Module, dispatcher: Dispatcher) -> None:
        self.module, self.dispatcher = module, dispatcher
        self._plain: tuple[Any, Callable[..., Any]] = (None, _original)  # a forward without self, and one with it
        self._of_class: tuple[Any, Callable[..., Any]] = (None, _original)  # the class's forward, and its original

    @property
    def daceopt_original(self) -> Callable[..., Any]:
        """The forward that this one stands for."""
        own = self.module.__dict__.get(_OWN)
        return own if own is not None else types.MethodType(_original(type(self.module)), self.module)

    __wrapped__ = daceopt_original  # so that inspect.signature shows the user's parameters

    @property
    def __func__(self) -> Callable[..., Any]:  # what wraps a forward, and takes the wrapper away, binds it again
        return _optimized_forward

    @property
    def __self__(self) -> nn.Module:
        return self.module

    @property
    def __code__(self) -> Any:  # torch.export asks a module's forward for it
        return self.daceopt_original.__code__

    def __call__(self, *args: object, **kwargs: object) -> object:
        module = self.module
        own = module.__dict__.get(_OWN)
        if own is None:
            if module.__class__.forward is not self._of_class[0]:
                self._of_class = module.__class__.forward, _original(module.__class__)
            return self.dispatcher.call(module, self._of_class[1], args, kwargs)
        if getattr(own, "__self__", None) is module:
            return self.dispatcher.call(module, own.__func__, args, kwargs)
        if self._plain[0] is not own:
            self._plain = own, _ignoring_self(own)
        return self.dispatcher.call(module, self._plain[1], args, kwargs)


def _optimized_forward(self: nn.Module, *args: object, **kwargs: object) -> object:
    """The forward of an optimized instance, as a function."""
    return self.__dict__["daceopt"].forward(*args, **kwargs)


def _original(cls: type[nn.Module]) -> Callable[..., Any]:
    forward = cls.forward
    return getattr(forward, "daceopt_original", forward)


def _ignoring_self(own: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        return own(*args, **kwargs)

    return forward


def _optimize_instance(model: nn.Module, options: Options) -> nn.Module:
    if isinstance(model, _WRAPPERS):
        model.__dict__["daceopt"] = _optimize_instance(model.module, options).daceopt
        return model
    own = model.__dict__.get("forward")
    if own is not None and not isinstance(own, OptimizedForward):
        model.__dict__[_OWN] = own
    _attach(model, Dispatcher(options))
    copyreg.pickle(type(model), _reduce)
    return model


def _attach(model: nn.Module, dispatcher: Dispatcher) -> None:
    # Past nn.Module.__setattr__: neither is a parameter, a buffer or a submodule.
    model.__dict__["forward"] = OptimizedForward(model, dispatcher)
    model.__dict__["daceopt"] = Handle(model, dispatcher, model.__dict__["forward"])
    model.__dict__["_replicate_for_data_parallel"] = functools.partial(_replica, model)


def _replica(model: nn.Module) -> nn.Module:
    """A replica for another device is made of the module's ``__dict__``, whose ``forward`` is that of this one."""
    replica = type(model)._replicate_for_data_parallel(model)
    own = replica.__dict__.pop(_OWN, None)
    if isinstance(replica.__dict__["forward"], OptimizedForward):
        for name in _ADDED:
            del replica.__dict__[name]
        if own is not None:
            replica.__dict__["forward"] = own
    return replica


def _reduce(model: nn.Module) -> Any:
    """How ``copy`` and ``pickle`` take a module whose class has optimized instances: a copy is optimized in its own
    right, where the attribute alone would run the module that it was copied from."""
    standard = model.__reduce_ex__(4)
    forward = model.__dict__.get("forward")
    if not isinstance(forward, OptimizedForward) or not isinstance(standard[2], dict):
        return standard
    state = {k: v for k, v in standard[2].items() if k not in _ADDED}
    return (_twin, (standard[0], standard[1], forward.dispatcher.options), state, *standard[3:])


def _twin(make: Callable[..., nn.Module], args: tuple[object, ...], options: Options) -> nn.Module:
    model = make(*args)
    _attach(model, Dispatcher(options))
    return model


# -------------------------------------------------------------------- classes


def _optimize_class(cls: type[nn.Module], options: Options) -> type[nn.Module]:
    target = cls if _is_decorated(cls) else _subclass(cls)
    _wrap_forward(target, options)
    inherited = target.__dict__.get("__init_subclass__")

    def init_subclass(sub: type[nn.Module], **kwargs: object) -> None:
        if inherited is not None:
            inherited.__func__(sub, **kwargs)
        else:
            super(target, sub).__init_subclass__(**kwargs)
        if "forward" in sub.__dict__:
            _wrap_forward(sub, options)

    target.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    target.daceopt = property(lambda self: _handle(self, options))
    target.__jit_unused_properties__ = [*getattr(target, "__jit_unused_properties__", ()), "daceopt"]
    return target


def _is_decorated(cls: type[nn.Module]) -> bool:
    """Whether nobody has the class under its name yet, as while it is being decorated: then it is changed itself.

    A subclass would do as well, but ``super(Net, self)`` inside of it would name the subclass, and never end.
    """
    if "<locals>" in cls.__qualname__:
        return any("super" in f.__code__.co_names and cls.__name__ in f.__code__.co_freevars for f in _functions(cls))
    holder: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        holder = getattr(holder, name, None)
    return holder is not cls


def _functions(cls: type) -> list[types.FunctionType]:
    return [f for f in vars(cls).values() if isinstance(f, types.FunctionType)]


def _subclass(cls: type[nn.Module]) -> type[nn.Module]:
    body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    kind: Any = type(cls)
    subclass: Any = kind(cls.__name__, (cls,), body)

    def reduce(self: nn.Module, protocol: object) -> object:
        standard = super(subclass, self).__reduce_ex__(protocol)
        if type(self) is not subclass:
            return standard
        # the class of that name is the one that this was made of
        return (_instance, (cls, self.daceopt.options), *standard[2:])

    subclass.__reduce_ex__ = reduce
    return subclass


def _instance(origin: type[nn.Module], options: Options) -> nn.Module:
    subclass: Any = next((m for o, own_options, m in _unpickled if o is origin and own_options == options), None)
    if subclass is None:
        subclass = _optimize_class(origin, options)
        _unpickled.append((origin, options, subclass))
    return subclass.__new__(subclass)


_unpickled: list[tuple[type[nn.Module], Options, type[nn.Module]]] = []


def _wrap_forward(cls: type[nn.Module], options: Options) -> None:
    original = _original(cls)

    @functools.wraps(original)
    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        # A subclass that overrides forward and calls super().forward() is compiled as a whole.
        if type(self).forward is not forward:
            return original(self, *args, **kwargs)
        return _dispatcher(self, options).call(self, original, args, kwargs)

    forward.daceopt_original = original  # type: ignore[attr-defined]
    cls.forward = forward


def _handle(module: nn.Module, options: Options) -> Handle:
    """The handle of an instance of an optimized class, which may have been optimized again with options of its own."""
    forward = module.__dict__.get("forward")
    own = isinstance(forward, OptimizedForward)
    return Handle(module, forward.dispatcher if own else _dispatcher(module, options))


def _dispatcher(module: nn.Module, options: Options) -> Dispatcher:
    """The instance's own dispatcher; one that came with a copied ``__dict__`` (copy.copy, replicas) does not count."""
    dispatcher = module.__dict__.get(_STATE)
    if dispatcher is not None and dispatcher.owner is not None and dispatcher.owner() is module:
        return dispatcher
    with _creating:
        current = module.__dict__.get(_STATE)
        if current is dispatcher:  # no other thread was faster
            current = Dispatcher(options if dispatcher is None else dispatcher.options, module)
            module.__dict__[_STATE] = current
        return current


class Handle:
    """What daceopt knows about one module: ``model.daceopt``."""

    def __init__(self, module: nn.Module, dispatcher: Dispatcher, forward: OptimizedForward | None = None) -> None:
        self._module, self._dispatcher, self.forward = module, dispatcher, forward

    @property
    def sdfg(self) -> dace.SDFG:
        """The forward graph of the program compiled last, as plain DaCe runs it (:mod:`daceopt.programs.plain`): its
        arguments are the arrays and sizes of ``sdfg.arglist()``, and ``constants`` where it lists such.

        Raises Unsupported when there is no program, or when plain DaCe cannot run it, with the reason.
        """
        return plain(self._pair().graphs.forward).sdfg

    @property
    def backward_sdfg(self) -> dace.SDFG | None:
        """Its backward graph in the same form, or None for a program without one. It reads what the forward graph
        saved for it under the same names."""
        backward = self._pair().graphs.backward
        return None if backward is None else plain(backward).sdfg

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The constants that ``sdfg`` and ``backward_sdfg`` take as arguments, by name: those too large for code."""
        graphs = [g for g in (self._pair().graphs.forward, self._pair().graphs.backward) if g is not None]
        return {name: value for graph in graphs for name, value in plain(graph).constants.items()}

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

    def explain_breaks(self) -> list[Break]:
        """Why parts of the calls so far ran in eager PyTorch, or raised: each with the line, what about it, which part,
        and what to write instead. ``reasons`` counts them by their ``text``."""
        return list(self._dispatcher.breaks.values())

    @property
    def options(self) -> Options:
        """What ``optimized_module`` was called with."""
        return self._dispatcher.options

    def explain(self, *inputs: object, **kwargs: object) -> object:
        """``daceopt.explain`` of this module on the arguments of a call."""
        return daceopt.explain(self._module, *inputs, **kwargs)

    def bisect(self, *inputs: object, built: bool = True, **kwargs: object) -> object:
        """The first step of the module's recipe that breaks a call with these arguments, forward or backward, with its
        site and a reproducer (:class:`daceopt.passes.bisect.Guilty`); None when all is well.

        ``built``: where all graphs are right, look at what is compiled of them, too.
        """
        from daceopt.modules.bisection import bisect_module  # brings DaCe

        return bisect_module(self._module, inputs, kwargs, self.options, built)

    def source(self, kernel: str | None = None) -> str:
        """The generated C++ of the program compiled last: all of it, or the kernels whose label contains ``kernel``.

        Raises Unsupported when there is no program, DaceoptError when there is no such kernel.
        """
        return source_of(self._pair(), kernel)

    def _pair(self) -> CompiledPair:
        """The pair compiled last, one with a backward program if there is any."""
        pairs = [graph.pair for graph in self._dispatcher.graphs]
        if not pairs:
            choices = [text for text in self.stats.choices if self.stats.chosen_pieces]
            why = "; ".join([*self._dispatcher.reasons, *choices]) or "it has not been called yet"
            raise Unsupported(f"{type(self._module).__name__} has no compiled program: {why}")
        return next((p for p in reversed(pairs) if p.backward is not None), pairs[-1])

    def __repr__(self) -> str:
        s = self.stats
        chosen = f" ({s.chosen_pieces} by choice)" if s.chosen_pieces else ""
        pieces = f", {s.eager_pieces} pieces in eager{chosen}" if s.eager_pieces else ""
        return f"<daceopt: {s.programs} programs, {s.calls} calls, {s.eager_calls} of them eager{pieces}>"
