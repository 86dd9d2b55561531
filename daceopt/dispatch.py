"""Decides, for each call of an optimized module, which compiled program runs it, or why it runs eagerly."""

from __future__ import annotations

import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from daceopt.errors import DaceoptError, FallbackWarning, RunError, Unsupported
from daceopt.explore.stats import Stats
from daceopt.guards import Call, Snapshot, is_transformed, unsupported_leaf
from daceopt.logs import caller_depth
from daceopt.specialise import Family, Options, Request, Specialisation

logger = logging.getLogger("daceopt.dispatch")

VARIANT_LIMIT = 16
"""States of a module (train, eval, dtypes, attributes) with programs of their own; further ones run eagerly."""

_TABLE_LIMIT = 4096
Forward = Callable[..., Any]


class _Variant:
    """The programs for one state of the module."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.table: dict[Any, Specialisation | str] = {}  # call key -> program, or the reason why there is none
        self.families: dict[Any, Family] = {}


class _Refused(Exception):
    """This call runs eagerly; ``store`` says where the reason belongs once the eager call has succeeded."""

    def __init__(
        self, reason: str, cause: BaseException | None = None, store: Callable[[], None] | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.cause, self.store = reason, cause, store


class Dispatcher:
    """The compiled side of one module. Copies and pickles carry the options only and compile anew."""

    def __init__(self, options: Options, owner: nn.Module | None = None) -> None:
        self.options = options
        self.owner = weakref.ref(owner) if owner is not None else None
        self.stats = Stats()
        self.reasons = self.stats.fallbacks
        self.latest: Specialisation | None = None
        self._variants: list[_Variant] = []
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Dispatcher:
        return Dispatcher(self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dispatcher, (self.options,)

    def call(self, module: nn.Module, original: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``original(*args, **kwargs)``, the module's own forward, compiled if possible."""
        if is_transformed():
            return original(*args, **kwargs)
        self.stats.calls += 1
        try:
            return self._run(module, args, kwargs)
        except _Refused as refused:
            return self._eager(module, original, args, kwargs, refused)

    def _run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        variant, owned = self._variant(module)
        if variant.snapshot.is_hooked():
            raise _Refused(f"hooks on submodules do not run in compiled code ({variant.snapshot.hooked()})")
        if torch.is_autocast_enabled("cpu"):
            raise _Refused("autocast is on; compiled programs keep the dtypes of the model")
        backward = self.options.backward
        grad = (torch.is_grad_enabled() or backward is True) and backward is not False
        call = Call(args, kwargs, grad)
        try:
            program = variant.table.get(call.key)
        except TypeError:
            raise _Refused("an argument is neither a tensor nor a plain value") from None
        if program is None:
            program = self._specialise(
                module, variant, Request(args, kwargs, call.leaves, grad, variant.snapshot, owned), call
            )
        if isinstance(program, str):
            raise _Refused(program)
        try:
            return program(owned, call.leaves)
        except RunError as error:
            raise _Refused(f"the compiled program failed: {error}", error) from error

    def _variant(self, module: nn.Module) -> tuple[_Variant, list[torch.Tensor]]:
        found = self._known_variant()
        if found is not None:
            return found
        with self._lock:
            found = self._known_variant()  # another thread may have added it meanwhile
            if found is not None:
                return found
            snapshot = Snapshot(module)
            owned = snapshot.read()
            if owned is None:
                raise _Refused("an attribute of the module cannot be compared with itself")
            if len(self._variants) >= VARIANT_LIMIT:
                change = snapshot.difference(self._variants[-1].snapshot)
                raise _Refused(f"the module was called in more than {VARIANT_LIMIT} states; last, {change}")
            variant = _Variant(snapshot)
            self._variants = [variant, *self._variants]
            return variant, owned

    def _known_variant(self) -> tuple[_Variant, list[torch.Tensor]] | None:
        for variant in self._variants:
            owned = variant.snapshot.read()
            if owned is not None:
                return variant, owned
        return None

    def _specialise(self, module: nn.Module, variant: _Variant, request: Request, call: Call) -> Specialisation | str:
        reason = unsupported_leaf(request.leaves) or _unsupported_state(request.owned) or variant.snapshot.displaced()
        if reason is not None:
            raise _Refused(reason)
        with self._lock:
            found = variant.table.get(call.key)
            if found is not None:
                return found
            family = variant.families.setdefault(_family_key(call), Family())
            program = family.find(request.leaves) or family.failure or self._compile(module, family, request)
            if len(variant.table) >= _TABLE_LIMIT:
                variant.table.clear()
            variant.table[call.key] = program
            return program

    def _compile(self, module: nn.Module, family: Family, request: Request) -> Specialisation:
        start = time.perf_counter()
        try:
            program = family.add(module, request, self.options)
        except Exception as error:  # whatever it is, the user's call is not lost
            reason = _reason(error)
            raise _Refused(reason, error, lambda: setattr(family, "failure", reason)) from error
        finally:
            self.stats.compile_seconds += time.perf_counter() - start
        self.stats.record(program.program.pair, program.shapes(request.owned, request.leaves))
        self.latest = program
        logger.info("%s: compiled in %.2f s", type(module).__name__, time.perf_counter() - start)
        return program

    def _eager(
        self, module: nn.Module, original: Forward, args: tuple[Any, ...], kwargs: dict[str, Any], refused: _Refused
    ) -> Any:
        name = type(module).__name__
        if self.options.fallback == "raise":
            if isinstance(refused.cause, DaceoptError):
                raise refused.cause
            raise Unsupported(f"{name}: {refused.reason}") from refused.cause
        result = original(*args, **kwargs)  # if this raises, the call itself is wrong and PyTorch's error says how
        self.stats.eager_calls += 1
        if refused.store is not None:
            refused.store()
        known = self.reasons.get(refused.reason, 0)
        self.reasons[refused.reason] = known + 1
        if not known:
            logger.info("%s runs eagerly: %s", name, refused.reason)
            if self.options.fallback == "warn":
                warnings.warn(
                    f"{name} runs in eager PyTorch: {refused.reason}", FallbackWarning, stacklevel=caller_depth()
                )
        return result


def _family_key(call: Call) -> Any:
    """The call's key with ranks instead of shapes."""
    grad, structure, *leaves = call.key
    ranks = [(len(k[0]), *k[1:]) if isinstance(k[0], torch.Size) else k for k in leaves]
    return (grad, structure, *ranks)


def _unsupported_state(owned: list[torch.Tensor]) -> str | None:
    for tensor in owned:
        if tensor is None:
            continue
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            return "the module has uninitialised (lazy) parameters; call it once before it is optimized"
        reason = unsupported_leaf([tensor])
        if reason is not None:
            return reason.replace("argument 0", "a parameter or buffer")
    return None


def _reason(error: BaseException) -> str:
    if isinstance(error, DaceoptError):
        return str(error)
    return f"{type(error).__name__}: {error}"
