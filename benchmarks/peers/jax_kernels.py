"""The kernels of ``kernel_set`` in JAX, served to another process: ``python jax_kernels.py`` in an environment of JAX.

It reads lines of JSON: {"enter": name, "inputs": folder of .npy, "training": bool}, then {"run": 1} for each call, or
{"results": folder} for a folder to write them to; and answers each with a line: {"seconds": of the call}, or {}.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _normal(x: Any, axes: Any) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + 1e-5)


def _wide(w: Any) -> Any:
    return w[:, None, None]


def _group_norm(x: Any, w: Any, b: Any) -> Any:
    return _normal(x.reshape(x.shape[0], 32, -1), -1).reshape(x.shape) * _wide(w) + _wide(b)


def _masked_softmax(x: Any, mask: Any) -> Any:
    return jax.nn.softmax(jnp.where(mask, -jnp.inf, x * 0.125), -1)


def _cross_entropy(x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x, -1), target[:, None], 1).mean()


def _normalize(x: Any) -> Any:
    return x / jnp.maximum(jnp.sqrt(jnp.square(x).sum(-1, keepdims=True)), 1e-12)


def _rotary(x: Any, cos: Any, sin: Any) -> Any:
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def _max_pool(x: Any) -> Any:
    window, strides, around = (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, around)


KERNELS: dict[str, Any] = {
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "swiglu": lambda a, b: jax.nn.silu(a) * b,
    "bias-gelu-residual": lambda x, b, r: jax.nn.gelu(x + b, approximate=False) + r,
    "layer-norm": lambda x, w, b: _normal(x, -1) * w + b,
    "add-layer-norm": lambda x, y, w, b: _normal(x + y, -1) * w + b,
    "rms-norm": lambda x, w: x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * w,
    "group-norm": _group_norm,
    "batch-norm-relu": lambda x, w, b: jax.nn.relu(_normal(x, (0, 2, 3)) * _wide(w) + _wide(b)),
    "instance-norm": lambda x: _normal(x, (2, 3)),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "masked-softmax": _masked_softmax,
    "log-softmax": lambda x: jax.nn.log_softmax(x, -1),
    "cross-entropy": _cross_entropy,
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "sum-rows": lambda x: x.sum(-1),
    "sum-columns": lambda x: x.sum(0),
    "variance": lambda x: x.var(1, ddof=1),
    "l2-normalize": _normalize,
    "transpose": lambda x: x.transpose(0, 2, 3, 1),
    "rotary": _rotary,
    "embedding": lambda w, rows: w[rows],
    "index-add": lambda x, rows: jnp.zeros((8192, x.shape[1]), x.dtype).at[rows].add(x),
    "max-pool": _max_pool,
}


def _function(name: str, arrays: list[Any], training: bool) -> Any:
    function = KERNELS[name]
    if not training:
        return jax.jit(lambda *xs: [function(*xs)])
    floats = tuple(k for k, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating))

    def both(*xs: Any) -> list[Any]:
        def of_floats(*fs: Any) -> Any:
            return function(*(fs[floats.index(k)] if k in floats else x for k, x in enumerate(xs)))

        y, pull = jax.vjp(of_floats, *(xs[k] for k in floats))
        return [y, *pull(jnp.asarray(np.linspace(-1, 1, y.size), y.dtype).reshape(y.shape))]

    return jax.jit(both)


def _run(function: Any, arrays: list[Any]) -> Any:
    return jax.block_until_ready(function(*arrays))


def main() -> None:
    """Serve until the input ends."""
    call: Any = None
    for line in sys.stdin:
        message, answer = json.loads(line), {}
        if "enter" in message:
            arrays = [jnp.asarray(np.load(p)) for p in sorted(Path(message["inputs"]).glob("*.npy"))]
            function = _function(message["enter"], arrays, message["training"])
            call = partial(_run, function, arrays)
        elif "run" in message:
            start = time.perf_counter()
            call()
            answer = {"seconds": time.perf_counter() - start}
        else:
            for k, result in enumerate(call()):
                np.save(Path(message["results"]) / f"{k:03}.npy", np.asarray(result))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
