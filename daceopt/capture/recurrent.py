"""ONNX forms of PyTorch's recurrent layers: one operator per layer, both directions in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnxscript import opset20 as op

from daceopt.capture.constants import Value, constant, integers

_LSTM_ORDER = (0, 3, 1, 2)  # ONNX has input, output, forget, cell; PyTorch input, forget, cell, output
_GRU_ORDER = (1, 0, 2)  # ONNX has update, reset, new; PyTorch reset, update, new


def lstm(x: Value, states: Sequence[Value], weights: Sequence[Value], *options: Any) -> tuple[Value, Value, Value]:
    """``aten.lstm.input``: (length, batch, size) -> (length, batch, directions * hidden) and the last h and c, each
    (layers * directions, batch, hidden).
    """

    def run(x: Value, w: Value, r: Value, b: Value, own: list[Value], **options: Any) -> Any:
        return op.LSTM(x, w, r, b, None, *own, **options)

    y, (h, c) = _stack(weights, *options).run(run, x, states, _LSTM_ORDER)
    return y, h, c


def gru(x: Value, state: Value, weights: Sequence[Value], *options: Any) -> tuple[Value, Value]:
    """``aten.gru.input``: as :func:`lstm`, with one state."""

    def run(x: Value, w: Value, r: Value, b: Value, own: list[Value], **options: Any) -> Any:
        return op.GRU(x, w, r, b, None, *own, linear_before_reset=1, **options)

    y, (h,) = _stack(weights, *options).run(run, x, [state], _GRU_ORDER)
    return y, h


def rnn_tanh(x: Value, state: Value, weights: Sequence[Value], *options: Any) -> tuple[Value, Value]:
    """``aten.rnn_tanh.input``: as :func:`lstm`, with one state."""
    return _rnn("Tanh", x, state, weights, *options)


def rnn_relu(x: Value, state: Value, weights: Sequence[Value], *options: Any) -> tuple[Value, Value]:
    """``aten.rnn_relu.input``: as :func:`lstm`, with one state."""
    return _rnn("Relu", x, state, weights, *options)


def _rnn(activation: str, x: Value, state: Value, weights: Sequence[Value], *options: Any) -> tuple[Value, Value]:
    stack = _stack(weights, *options)

    def run(x: Value, w: Value, r: Value, b: Value, own: list[Value], **options: Any) -> Any:
        return op.RNN(x, w, r, b, None, *own, activations=[activation] * stack.directions, **options)

    y, (h,) = stack.run(run, x, [state], (0,))
    return y, h


def _stack(
    weights: Sequence[Value],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> _Stack:
    return _Stack(weights, biased, layers, dropout if train else 0.0, bidirectional, batch_first)


class _Stack:
    """Layers one above the other, each with its slice of the states and its own weights."""

    def __init__(
        self,
        weights: Sequence[Value],
        biased: bool,
        layers: int,
        dropout: float,
        bidirectional: bool,
        batch_first: bool,
    ) -> None:
        self.layers, self.dropout, self.batch_first = layers, dropout, batch_first
        self.directions = 2 if bidirectional else 1
        each = 4 if biased else 2
        if len(weights) != each * layers * self.directions:
            raise ValueError("a recurrent layer with projections (proj_size)")
        self.weights = [weights[k : k + each] for k in range(0, len(weights), each)]

    def run(self, cell: Any, x: Value, states: Sequence[Value], order: Sequence[int]) -> tuple[Value, list[Value]]:
        hidden = int(states[0].shape[2])
        last: list[list[Value]] = [[] for _ in states]
        x = op.Transpose(x, perm=[1, 0, 2]) if self.batch_first else x
        for layer in range(self.layers):
            rows = range(layer * self.directions, (layer + 1) * self.directions)
            operands = self._operands([self.weights[k] for k in rows], hidden, order)
            own = [_rows(state, 0, rows.start, rows.stop) for state in states]
            y, *final = cell(x, *operands, own, hidden_size=hidden, direction=self._direction())
            x = self._joined(y, hidden)
            if self.dropout > 0.0 and layer < self.layers - 1:
                x, _ = op.Dropout(x, constant(np.array(self.dropout, np.float32)), constant(np.array(True)))
            for found, state in zip(last, final, strict=True):
                found.append(state)
        x = op.Transpose(x, perm=[1, 0, 2]) if self.batch_first else x
        return x, [_concatenated(found) for found in last]

    def _direction(self) -> str:
        return "bidirectional" if self.directions == 2 else "forward"

    def _operands(self, weights: Sequence[Sequence[Value]], hidden: int, order: Sequence[int]) -> list[Value | None]:
        """W (directions, gates * hidden, size), R (directions, gates * hidden, hidden) and, if there is one, the bias
        (directions, 2 * gates * hidden), gates in ONNX's order.
        """
        found: list[Value | None] = []
        first = integers([0])
        for position in range(2):
            found.append(_concatenated([op.Unsqueeze(_gates(w[position], hidden, order), first) for w in weights]))
        if len(weights[0]) == 2:
            return [*found, None]
        biases = [op.Concat(*(_gates(part, hidden, order) for part in w[2:]), axis=0) for w in weights]
        return [*found, _concatenated([op.Unsqueeze(b, first) for b in biases])]

    def _joined(self, y: Value, hidden: int) -> Value:
        """(length, directions, batch, hidden) -> (length, batch, directions * hidden)"""
        if self.directions == 1:
            return op.Squeeze(y, integers([1]))
        return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), integers([0, 0, 2 * hidden]))


def _gates(weight: Value, hidden: int, order: Sequence[int]) -> Value:
    """Blocks of ``hidden`` rows in another order."""
    if len(order) == 1:
        return weight
    return op.Concat(*(_rows(weight, 0, g * hidden, (g + 1) * hidden) for g in order), axis=0)


def _rows(x: Value, axis: int, start: int, stop: int) -> Value:
    return x if x.shape[axis] == stop - start else op.Slice(x, integers([start]), integers([stop]), integers([axis]))


def _concatenated(parts: list[Value]) -> Value:
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
