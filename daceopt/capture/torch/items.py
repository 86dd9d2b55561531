"""Numbers read out of tensors (``x.item()``, ``float(x)``, ``x.tolist()``) stay in the graph where nothing but
arithmetic reads them.

Where anything else does, a branch, a size, a result of the graph, Dynamo begins again, and the graph breaks there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import CodeType
from typing import Any

import sympy
import torch
from torch import fx

from daceopt.capture.torch import state_values
from daceopt.capture.torch.lines import UNLIKE_PYTHON
from daceopt.torch_internals.dynamo_tracing import (
    BaseListVariable,
    ExactWeakKeyDictionary,
    Translator,
    VariableTracker,
    break_graph,
    current_translator,
    restart_tracing,
    settings,
)

Place = tuple[CodeType, int]

_breaking: set[Place] = set()
"""Places in code where a number is read, and the graph breaks."""

_values: dict[Any, list[Any]] = {}
"""A frame, a place and the tensor that is read there -> the numbers that were constants."""

_MOST = 3  # of those

_SUBSCRIPTS = ("BINARY_SUBSCR", "STORE_SUBSCR", "BINARY_SLICE", "STORE_SLICE", "BUILD_SLICE")
"""Instructions that want a number, of which sizes depend, where a bound is a tensor."""

_indices: Any = ExactWeakKeyDictionary()
"""Code of a frame -> the source of an index in it -> its numbers so far."""

_REFUSED = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
"""Dynamo's reason for a break where a number is read."""

_TAKEN = "daceopt_items"  # where an attempt of Dynamo keeps the symbols it has for numbers -> the places


def take_item(call: Callable[[], Any], variable: Any, tx: Translator, name: str) -> VariableTracker:
    """``call`` is Dynamo's own for ``variable.item()``, or ``variable.tolist()``."""
    place = tx.f_code, tx.instruction_pointer
    example = variable.as_proxy().node.meta.get("example_value")
    is_number = isinstance(example, torch.Tensor) and not example.is_complex() and example.dtype != torch.bool
    is_wanted = place in _breaking or not is_number or tx.current_instruction.opname in _SUBSCRIPTS
    if is_wanted and (number := _kept_value(variable, tx, name, place)) is not None:
        return VariableTracker.build(tx, number)
    if place in _breaking and isinstance(example, torch.Tensor) and example.ndim:  # Dynamo takes a list in any case
        break_graph(_REFUSED, UNLIKE_PYTHON)
    with settings(capture_scalar_outputs=is_number and place not in _breaking):
        result = call()
    for one in _leaves(result):
        if isinstance(number := getattr(one, "sym_num", None), torch.SymInt | torch.SymFloat):
            _places(tx.output).update(dict.fromkeys(map(str, number.node.expr.free_symbols), place))
            _note_element(one.as_proxy().node.args[0])
    return result


def constant(variable: VariableTracker, tx: Translator) -> VariableTracker:
    """The number that a tensor of a module holds; the tensor itself where that is not known."""
    number = _kept_value(variable, tx, "item", (tx.f_code, tx.instruction_pointer))
    return variable if number is None else VariableTracker.build(tx, number)


def _kept_value(variable: Any, tx: Translator, name: str, place: Place) -> object:
    """What a module keeps, as long as it does not change with each look; else None."""
    number = state_values.answer(tx, getattr(torch.Tensor, name), variable)
    node = variable.as_proxy().node
    values = _values.setdefault((tx.output.root_tx.f_code, place, str(node.args or node)), [])
    if number is None or (number not in values and len(values) == _MOST):
        return None
    if number not in values:
        values.append(number)
    return number


def _leaves(variable: object) -> list[Any]:
    if not isinstance(variable, BaseListVariable):
        return [variable]
    return [leaf for one in variable.items for leaf in _leaves(one)]


def _note_element(node: fx.Node) -> None:
    """Dynamo does not say of the elements of a list of numbers what they are."""
    if "example_value" in node.meta:
        return
    operand, at = node.args
    _note_element(operand)
    node.meta["example_value"] = operand.meta["example_value"][at]


def is_taken(output: object, number: sympy.Expr) -> bool:
    """Has the attempt of Dynamo read a number that this is computed of?"""
    return any(str(symbol) in _places(output) for symbol in number.free_symbols)


def _places(output: object) -> dict[str, Place]:
    places: dict[str, Place] = output.__dict__.setdefault(_TAKEN, {})
    return places


def check_index(tx: Translator, key: Any) -> None:
    """Break the graph at an index that is a tensor of one number, of which Dynamo makes a constant, once it changes."""
    value = key.as_proxy().node.meta.get("example_value") if key.is_tensor() else None
    number = getattr(value, "item_memo", None)
    if tx.one_graph or key.source is None or not isinstance(number, torch.SymInt):
        return
    code = tx.output.root_tx.f_code
    if code not in _indices:
        _indices[code] = {}
    indices = _indices[code].setdefault(key.source.name, set())
    if len(indices - {number.node.hint}) > 1:
        reason = "an index that is a tensor of one number, which changes"
        hints = ["Index by a tensor with an axis."]
        break_graph(reason, UNLIKE_PYTHON, hints)
    indices.add(number.node.hint)


def leave(output: object, *values: object) -> None:
    """Let Dynamo begin again, and its graph break, where numbers have been read of which ``values`` are computed."""
    places = _places(output)
    nodes = [v.node for v in values if isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool)]
    _restart({places[s] for n in nodes for s in map(str, n.expr.free_symbols) if s in places})


def leave_named(text: str) -> None:
    """As ``leave``, for the numbers whose symbols are in a text: why Dynamo cannot go on."""
    words = set(re.findall(r"\w+", text))
    _restart({place for symbol, place in _current().items() if symbol in words})


def leave_all() -> None:
    """As ``leave``, where any number has been read, and the graph cannot be compiled."""
    _restart(set(_current().values()))


def _current() -> dict[str, Place]:
    """The numbers of the attempt that runs; none where Dynamo traces nothing in this thread."""
    translator = current_translator()
    return {} if translator is None else _places(translator.output)


def _restart(places: set[Place]) -> None:
    places = places - _breaking
    if places:
        _breaking.update(places)
        restart_tracing()
