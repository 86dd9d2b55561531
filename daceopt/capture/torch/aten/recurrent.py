"""Recurrent layers as LSTM, GRU and RNN: one operator for each layer and direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim

# where PyTorch's parameters have each gate of ONNX's operator
_LSTM_ORDER = [0, 3, 1, 2]  # ONNX has input, output, forget, cell; PyTorch input, forget, cell, output
_GRU_ORDER = [1, 0, 2]  # ONNX has update, reset, new; PyTorch reset, update, new


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
    options = {"gate_order": _LSTM_ORDER}
    projected = t.shape_of(hx[0])[-1] != t.shape_of(hx[1])[-1]
    stack = _Stack(t, "LSTM", has_biases, num_layers, dropout if train else 0.0, bidirectional, options, projected)
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
    kind, options = _KINDS[t.label]
    stack = _Stack(t, kind, has_biases, num_layers, dropout if train else 0.0, bidirectional, options)
    return stack.run(input, [hx], params, batch_first)


_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gru": ("GRU", {"linear_before_reset": 1, "gate_order": _GRU_ORDER}),
    "rnn_tanh": ("RNN", {"activations": ["Tanh"]}),
    "rnn_relu": ("RNN", {"activations": ["Relu"]}),
}


@dataclass
class _Stack:
    """Layers one above the other, each with its slice of the states and its own weights."""

    t: Translation
    kind: str
    biased: bool
    layers: int
    dropout: float
    bidirectional: bool
    options: dict[str, Any]

    projected: bool = False  # are the hidden states products by a matrix of their own?

    @property
    def each(self) -> int:
        """Parameters of a layer and direction."""
        return (4 if self.biased else 2) + self.projected

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def run(self, x: str, states: list[str], params: Sequence[str], batch_first: bool) -> tuple[str, ...]:
        """The sequence of results, then the last states of all layers."""
        self._check(x, states, params)
        t, each, last = self.t, self.each, [[] for _ in states]  # type: ignore[var-annotated]
        x = t.transpose(x, [1, 0, 2]) if batch_first else x
        for layer in range(self.layers):
            rows = range(layer * self.directions, (layer + 1) * self.directions)
            weights = [params[each * k : each * (k + 1)] for k in rows]
            own = [self._rows(state, rows.start, rows.stop) for state in states]
            x, *final = self._layer(x, weights, own)
            x = self._drop(x) if layer < self.layers - 1 else x
            for of_layers, state in zip(last, final, strict=True):
                of_layers.append(state)
        x = t.transpose(x, [1, 0, 2]) if batch_first else x
        return x, *(self._join(of_layers) for of_layers in last)

    def _check(self, x: str, states: list[str], params: Sequence[str]) -> None:
        shape, expected = self.t.shape_of(x), self.each * self.layers * self.directions
        if len(params) != expected:
            raise Unsupported(f"a recurrent layer with {len(params)} parameters, expected {expected}")
        if not types.is_float(self.t.dtype_of(x)) or len(shape) != 3 or 0 in shape:
            raise Unsupported(f"a recurrent layer over {types.name_of(self.t.dtype_of(x))}{list(shape)}")
        if not all(isinstance(n, int) for p in params for n in self.t.shape_of(p)):
            raise Unsupported("a recurrent layer with weights of symbolic size")

    def _layer(self, x: str, weights: Sequence[Sequence[str]], states: list[str]) -> list[str]:
        """The results as (length, batch, directions * hidden) and the last states: one operator for each direction.

        Each takes the parameters as they are, without a copy.
        """
        directions = [
            self._direction(x, own, [self._rows(s, k, k + 1) for s in states], bool(k)) for k, own in enumerate(weights)
        ]
        results, *final = zip(*directions, strict=True)
        return [self._join(results, axis=2), *(self._join(states) for states in final)]

    def _direction(self, x: str, own: Sequence[str], states: Sequence[str], reverse: bool) -> tuple[str, ...]:
        """The results as (length, batch, hidden) and the last states, (1, batch, hidden)."""
        t, (steps, batch, _), widths = self.t, self.t.shape_of(x), [self.t.shape_of(s)[2] for s in states]
        w, r = (self._stack(weight) for weight in own[:2])
        bias = self._stack(self._join(own[2:4])) if self.biased else None
        results = [Promise((steps, 1, batch, widths[0]), t.dtype_of(x))]
        results += [Promise((1, batch, width), t.dtype_of(x)) for width in widths]
        options = {"hidden_size": widths[-1], "direction": "reverse" if reverse else "forward", **self.options}
        more = [None, self._stack(own[-1])] if self.projected else []  # no peepholes
        y, *final = t.operators(self.kind, x, w, r, bias, None, *states, *more, results=results, **options)
        return t.reshape(y, (steps, batch, widths[0])), *final

    def _drop(self, x: str) -> str:
        """With dropout between layers."""
        if not self.dropout:
            return x
        t = self.t
        ratio, training = t.b.constant(np.asarray(self.dropout, np.float32)), t.b.constant(np.asarray(True))
        return t.operator("Dropout", x, ratio, training, results=[Promise(t.shape_of(x), t.dtype_of(x))])

    def _stack(self, x: str) -> str:
        """With an axis for directions."""
        return self.t.reshape(x, (1, *self.t.shape_of(x)))

    def _rows(self, x: str, start: Dim, stop: Dim) -> str:
        shape = self.t.shape_of(x)
        if dim(shape[0] - stop + start) == 0:
            return x
        promise = Promise((dim(stop - start), *shape[1:]), self.t.dtype_of(x))
        bounds = [self.t.b.constant(np.asarray([v], np.int64)) for v in (start, stop, 0)]
        return str(self.t.operator("Slice", x, *bounds, results=[promise]))

    def _join(self, parts: Sequence[str], axis: int = 0) -> str:
        if len(parts) == 1:
            return parts[0]
        shape = list(self.t.shape_of(parts[0]))
        shape[axis] = dim(sum(self.t.shape_of(p)[axis] for p in parts))
        promise = Promise(tuple(shape), self.t.dtype_of(parts[0]))
        return str(self.t.operator("Concat", *parts, results=[promise], axis=axis))
