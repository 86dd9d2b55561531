"""What stands for code that TorchDynamo leaves whole in its graphs: operators that users registered, and functions that
it was told not to look into. What these do is traced below Dynamo, so a graph of the same calls is another one when it
changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from daceopt.store.identity import is_known, never_again, take_apart, text_of
from daceopt.store.own_text import home
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.torch_operators import CustomOpDef, OpOverload, OpOverloadPacket

OF_PYTORCH = frozenset("aten prims prim daceopt".split())  # namespaces that the versions in every key stand for
_REGISTERED = re.compile(r"registered at (.*):\d+")
_DEFINITION = "torch/_library/custom_ops.py"  # where PyTorch registers what ``OPDEFS`` has
_FAKE = "torch/_library/fake_impl.py"  # and what the registry of fake implementations has
_REGISTRATION = frozenset("_lib _opoverload _tags".split())  # of a definition; the rest is what it does


def text_of_target(target: object) -> str:
    """A text that changes whenever what a node calls may compute something else; empty for what is of PyTorch."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return "" if _is_pytorchs(target) else text_of(target)
    inner = isinstance(target, (MethodType, partial)) or getattr(target, "__closure__", None)
    if isinstance(target, (FunctionType, MethodType, partial, type)) and (inner or not is_known(home(target))):
        return text_of(target)
    return ""


def text_of_value(value: object) -> str:
    """The text of a constant among a node's arguments; what prints as an address is described by what it holds."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text_of(value) if callable(value) or " at 0x" in text else text


def _is_pytorchs(target: OpOverload | OpOverloadPacket) -> bool:
    return _packet(target)._qualified_op_name.partition("::")[0] in OF_PYTORCH


def _packet(target: OpOverload | OpOverloadPacket) -> OpOverloadPacket:
    return target.overloadpacket if isinstance(target, OpOverload) else target


def has_derivative(target: OpOverload) -> bool:
    """Whether autograd knows the operator itself. Of a kernel that stands alone it records whatever that calls, if
    anything, which no trace shows."""
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
    own = target.namespace in OF_PYTORCH
    return own or any(torch_operators.has_kernel(target.name(), key) for key in keys)


def _operator(target: OpOverload | OpOverloadPacket) -> list[Any]:
    """What stands for an operator, wherever code names it."""
    packet = _packet(target)
    name = packet._qualified_op_name
    if _is_pytorchs(packet):
        return [name]
    qualified = [name if overload == "default" else f"{name}.{overload}" for overload in packet.overloads()]
    return [part for one in qualified for part in _overload(one)]


def _overload(name: str) -> Iterator[Any]:
    """The schema with its default arguments, and the code: of Python itself, of C++ the libraries in this process."""
    table = torch_operators.registrations(name)
    yield table.partition("debug:")[0]
    files = set(_REGISTERED.findall(table))
    definition = torch_operators.custom_definition(name)
    yield torch_operators.fake_kernels(name)
    if definition is not None:
        yield from _definitions(definition)
    written = {f for f in files if f.endswith((".py", ">")) and not _is_described(f, definition is not None)}
    if written:
        yield never_again(f"kernels of {name}")
    if any(not f.endswith((".py", ">")) for f in files):
        yield from _libraries()


def _definitions(definition: CustomOpDef) -> list[Any]:
    """Its kernels, derivatives, what autocast makes of its arguments, which kernels are switched off."""
    return [str(definition._tags), *((n, v) for n, v in sorted(vars(definition).items()) if n not in _REGISTRATION)]


def _is_described(file: str, defined: bool) -> bool:
    return file.endswith(_FAKE) or (defined and file.endswith(_DEFINITION))


def _libraries() -> Iterator[str]:
    """Extensions in this process that are of no package whose version is in every key."""
    modules = [m for n, m in list(sys.modules.items()) if not is_known(n)]
    files = {str(getattr(m, "__file__", None)) for m in modules} | set(torch.ops.loaded_libraries)
    for file in sorted(f for f in files if ".so" in f):
        yield f"{file} {_state(file)}"


def _state(file: str) -> str:
    try:
        status = Path(file).stat()
    except OSError:
        return never_again(file)
    return f"{status.st_size} {status.st_mtime_ns}"


take_apart((OpOverload, OpOverloadPacket), _operator)
take_apart((CustomOpDef,), _definitions)
