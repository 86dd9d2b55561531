"""Recurrent layers as LSTM, GRU and RNN: one operator per layer, both directions in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Dim, dim

_LSTM_ORDER = (0, 3, 1, 2)  # ONNX has input, output, forget, cell; PyTorch input, forget, cell, output
_GRU_ORDER = (1, 0, 2)  # ONNX has update, reset, new; PyTorch reset, update, new


@translates("lstm.input")
def lstm(
    t: Translation,
    input: str,
    hx: Sequence[str],
    params: Sequence[str],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    stack = _Stack(t, "LSTM", _LSTM_ORDER, has_biases, num_layers, dropout if train else 0.0, bidirectional, {})
    return stack.run(input, list(hx), params, batch_first)


@translates("gru.input", "rnn_tanh.input", "rnn_relu.input")
def simple(
    t: Translation,
    input: str,
    hx: str,
    params: Sequence[str],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    """Layers with one state."""
    kind, order, options = _KINDS[t.label]
    if "activations" in options:
        options = {"activations": options["activations"] * (2 if bidirectional else 1)}
    stack = _Stack(t, kind, order, has_biases, num_layers, dropout if train else 0.0, bidirectional, options)
    return stack.run(input, [hx], params, batch_first)


_KINDS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "gru": ("GRU", _GRU_ORDER, {"linear_before_reset": 1}),
    "rnn_tanh": ("RNN", (0,), {"activations": ["Tanh"]}),
    "rnn_relu": ("RNN", (0,), {"activations": ["Relu"]}),
}


@dataclass
class _Stack:
    """Layers one above the other, each with its slice of the states and its own weights."""

    t: Translation
    kind: str
    order: tuple[int, ...]
    biased: bool
    layers: int
    dropout: float
    bidirectional: bool
    options: dict[str, Any]

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def run(self, x: str, states: list[str], params: Sequence[str], batch_first: bool) -> tuple[str, ...]:
        """The sequence of results, then the last states of all layers."""
        self._check(x, states, params)
        t, each, last = self.t, 4 if self.biased else 2, [[] for _ in states]  # type: ignore[var-annotated]
        x = t.transpose(x, [1, 0, 2]) if batch_first else x
        for layer in range(self.layers):
            rows = range(layer * self.directions, (layer + 1) * self.directions)
            weights = [params[each * k : each * (k + 1)] for k in rows]
            own = [self._rows(state, rows.start, rows.stop) for state in states]
            x, *final = self._layer(x, weights, own)
            x = self._dropped(x) if layer < self.layers - 1 else x
            for found, state in zip(last, final, strict=True):
                found.append(state)
        x = t.transpose(x, [1, 0, 2]) if batch_first else x
        return x, *(self._joined(found) for found in last)

    def _check(self, x: str, states: list[str], params: Sequence[str]) -> None:
        shape, each = self.t.shape_of(x), 4 if self.biased else 2
        if len(params) != each * self.layers * self.directions:
            raise Unsupported("a recurrent layer with projections (proj_size)")
        if not types.is_float(self.t.dtype_of(x)) or len(shape) != 3 or 0 in shape:
            raise Unsupported(f"a recurrent layer over {types.name_of(self.t.dtype_of(x))}{list(shape)}")
        if not all(isinstance(n, int) for p in params for n in self.t.shape_of(p)):
            raise Unsupported("a recurrent layer with weights of symbolic size")

    def _layer(self, x: str, weights: Sequence[Sequence[str]], states: list[str]) -> list[str]:
        """One operator: the results as (length, batch, directions * hidden) and the last states."""
        t, (steps, batch, _), hidden = self.t, self.t.shape_of(x), self.t.shape_of(states[0])[2]
        count = self.directions
        w, r = (self._joined([self._stacked(self._ordered(own[k], hidden)) for own in weights]) for k in (0, 1))
        bias = None
        if self.biased:
            both = [self._joined([self._ordered(own[k], hidden) for k in (2, 3)]) for own in weights]
            bias = self._joined([self._stacked(b) for b in both])
        results = [Promise((steps, count, batch, hidden), t.dtype_of(x))]
        results += [Promise((count, batch, hidden), t.dtype_of(x))] * len(states)
        direction = "bidirectional" if self.bidirectional else "forward"
        options = {"hidden_size": hidden, "direction": direction, **self.options}
        y, *final = t.operator(self.kind, x, w, r, bias, None, *states, results=results, **options)
        return [self._side_by_side(y), *final]

    def _side_by_side(self, y: str) -> str:
        """(length, directions, batch, hidden) -> (length, batch, directions * hidden)"""
        steps, count, batch, hidden = self.t.shape_of(y)
        wide = (steps, batch, dim(count * hidden))
        return self.t.reshape(y if count == 1 else self.t.transpose(y, [0, 2, 1, 3]), wide)

    def _dropped(self, x: str) -> str:
        """With dropout between layers."""
        if not self.dropout:
            return x
        t = self.t
        ratio, training = t.b.constant(np.asarray(self.dropout, np.float32)), t.b.constant(np.asarray(True))
        return str(t.operator("Dropout", x, ratio, training, results=[Promise(t.shape_of(x), t.dtype_of(x))]))

    def _ordered(self, weight: str, hidden: Dim) -> str:
        """Blocks of ``hidden`` rows, one per gate, in ONNX's order."""
        if len(self.order) == 1:
            return weight
        return self._joined([self._rows(weight, g * hidden, (g + 1) * hidden) for g in self.order])

    def _stacked(self, x: str) -> str:
        """With an axis for directions."""
        return self.t.reshape(x, (1, *self.t.shape_of(x)))

    def _rows(self, x: str, start: Dim, stop: Dim) -> str:
        shape = self.t.shape_of(x)
        if dim(shape[0] - stop + start) == 0:
            return x
        promise = Promise((dim(stop - start), *shape[1:]), self.t.dtype_of(x))
        bounds = [self.t.b.constant(np.asarray([v], np.int64)) for v in (start, stop, 0)]
        return str(self.t.operator("Slice", x, *bounds, results=[promise]))

    def _joined(self, parts: Sequence[str]) -> str:
        """Along the first axis."""
        if len(parts) == 1:
            return parts[0]
        shapes = [self.t.shape_of(p) for p in parts]
        promise = Promise((dim(sum(s[0] for s in shapes)), *shapes[0][1:]), self.t.dtype_of(parts[0]))
        return str(self.t.operator("Concat", *parts, results=[promise], axis=0))
