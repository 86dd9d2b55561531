"""A graph of Dynamo with sizes that only the data decide, cut where they are decided.

A call decides: which elements are not zero, what number a tensor holds. Eager PyTorch makes it, between programs; to
those behind it the size is one of their arguments', as any other size that changes. What a program can compute before
a call that decides it does, so that there are few. Nothing of the user's Python runs in between: the graph is whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer, Proxy

from daceopt.capture.torch import assumed_sizes
from daceopt.capture.torch.assertions import assertion
from daceopt.capture.torch.gradient_scopes import requires_grad, storage
from daceopt.capture.torch.mask_places import BINDINGS, COMPARISONS, as_places
from daceopt.capture.torch.numbers import stand_for_number
from daceopt.capture.torch.writes import written_nodes
from daceopt.errors import Unsupported
from daceopt.torch_internals import autograd_engine, symbol_functions, torch_operators
from daceopt.torch_internals.fake_tensors import FakeTensor
from daceopt.torch_internals.pytree import SequenceKey, tree_leaves, tree_map
from daceopt.torch_internals.symbolic_shapes import CallMethodKey, ConvertIntKey, DivideByKey, free_unbacked_symbols
from daceopt.torch_internals.torch_operators import enter_autocast, exit_autocast

Make = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""Makes the program of a part, of which the (fake) arguments are given."""

_STATES = (autograd_engine.set_grad_enabled, enter_autocast, exit_autocast)
"""Calls that change what those behind them do, and have neither arguments nor results that are tensors."""

_CHECK = torch.ops.aten._assert_scalar.default
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Differs(RuntimeError):
    """Sizes of a call are not what its program was made for."""


def is_cut(graph: fx.GraphModule) -> bool:
    """Whether a call of the graph decides sizes, or whether it goes on: a number that it reads does so where one
    depends on it, or is asserted of it."""
    deciding = [n for n in graph.graph.nodes if BINDINGS in n.meta]
    tensors = [t for n in graph.graph.nodes for t in tree_leaves(_value(n)) if isinstance(t, torch.Tensor)]
    stated = [_value(n.args[0]) for n in graph.graph.nodes if _asserts_number(n)]
    read = {s for size in (*(n for t in tensors for n in t.shape), *stated) for s in free_unbacked_symbols(size)}
    return any(n.target != "item" or not read.isdisjoint(n.meta[BINDINGS]) for n in deciding)


def in_parts(graph: fx.GraphModule, inputs: Sequence[object], make: Make, may_fail: bool = True) -> fx.GraphModule:
    """A graph that calls programs of the parts of ``graph``, and between them what decides sizes. ``inputs``: the
    arguments of a call; ``may_fail``: whether a call is repeated in which the graph raises Differs.

    Raises Unsupported where the parts would not mean what the graph does.
    """
    return _Cutter(as_places(graph), inputs, make, may_fail).run()


def check(condition: object, message: str) -> None:
    """Raise Differs where what a trace has assumed of sizes does not hold."""
    if not condition:
        raise Differs(message)


@dataclass
class _Order:
    """Which part computes each node. What decides runs behind the part of the same number."""

    levels: dict[fx.Node, int] = field(default_factory=dict)

    def ready(self, node: fx.Node) -> int:
        """The first part that may read the value."""
        return self.levels[node] + (_role(node) == "decides")


def _role(node: fx.Node) -> str:
    """What becomes of a node: "decides", "state", "number" (sizes, and checks of them), "argument", or "part"."""
    if node.op in ("placeholder", "get_attr", "output"):
        return "argument"
    if BINDINGS in node.meta or (node.target is operator.getitem and _decides(node.args[0])):
        return "decides"
    if node.target in _STATES:
        return "state"
    return "number" if _is_number(_value(node)) or node.target is _CHECK or _asserts_number(node) else "part"


def _asserts_number(node: fx.Node) -> bool:
    """Is it a statement of the user's, of numbers?"""
    is_statement = node.target is assertion and isinstance(node.args[0], fx.Node)
    return is_statement and _is_number(_value(node.args[0]))


def _decides(node: fx.Node) -> bool:
    return isinstance(node, fx.Node) and BINDINGS in node.meta


def _order_nodes(graph: fx.Graph, changed: set[int | None]) -> _Order:
    """Every node as early as what it reads is there; what is written, and what reads that, stay in their order."""
    order, last = _Order(), dict.fromkeys(changed, 0)
    for node in graph.nodes:
        touched = {storage(x) for x in (node, *node.all_input_nodes)} & changed
        own = node.target is operator.getitem and _decides(node.args[0])
        before = [order.levels[node.args[0]]] if own else [order.ready(x) for x in node.all_input_nodes]
        order.levels[node] = max([0, *before, *(last[s] for s in touched)])
        for memory in touched:
            last[memory] = order.ready(node)
    return order


class _Numbers:
    """Computes numbers in a graph that is built, from its values of symbols."""

    def __init__(self, is_raw: bool = False) -> None:
        """``is_raw``: of symbols that are known to be equal, each is itself."""
        self._is_raw = is_raw
        self.graph = fx.Graph()
        self.sources: dict[sympy.Symbol, Callable[[], fx.Node]] = {}
        self._known: dict[sympy.Symbol, fx.Node] = {}

    def of(self, value: object) -> object:
        """A node for a symbolic number, numbers for the sizes of a tensor; what is known is itself."""
        if isinstance(value, tuple):
            return tuple(map(self.of, value))
        if not isinstance(value, _SYMBOLIC):
            return value
        expr = value.node._expr if self._is_raw else value.node.expr
        tracer = GraphAppendingTracer(self.graph)
        symbols = {s: Proxy(self.symbol(s), tracer) for s in sorted(expr.free_symbols, key=str)}
        number = symbol_functions.evaluate(expr, symbols)
        return number.node if isinstance(number, Proxy) else number

    def symbol(self, symbol: sympy.Symbol) -> fx.Node:
        """The node for the value of a symbol."""
        if symbol not in self._known:
            if symbol not in self.sources:
                raise Unsupported(f"a size that only the data decides ({symbol})")
            self._known[symbol] = self.sources[symbol]()
        return self._known[symbol]


class _Cutter:
    def __init__(self, graph: fx.GraphModule, inputs: Sequence[object], make: Make, may_fail: bool) -> None:
        self.module, self.graph, self._make, self._may_fail = graph, graph.graph, make, may_fail
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self._inputs = dict(zip(placeholders, inputs, strict=True))
        self._changed = {storage(x) for n in self.graph.nodes for x in written_nodes(n)} - {None}
        self._order = _order_nodes(self.graph, self._changed)
        self.roots: dict[fx.Node, fx.Node] = {}
        for node in self.graph.nodes:
            self.roots[node] = self._root_of(node)
        self._mode = next(v.fake_mode for v in map(_value, self.graph.nodes) if isinstance(v, FakeTensor))
        self._outer = _Numbers(is_raw=True)
        self._value_of: dict[fx.Node, fx.Node] = {}  # node of the graph -> that of the outer one that is its value

    def run(self) -> fx.GraphModule:
        """The outer graph."""
        self._check_deciders()
        _unify(self.graph, self._mode.shape_env)
        for node in self._inputs:
            self._value_of[node] = self._outer.graph.node_copy(node)
        self._outer.sources.update(self._sources())
        for level in range(1 + max(self._order.levels.values())):
            nodes = [n for n in self.graph.nodes if self._order.levels[n] == level]
            for node in nodes:
                self._add_checks(node)
            self._part([n for n in nodes if _role(n) == "part"], level)
            for node in nodes:
                if _role(node) == "decides":
                    self._value_of[node] = self._outer.graph.node_copy(node, self._outside)
        self._outer.graph.output(tree_map(self._outside, self.graph.output_node().args[0]))
        return fx.GraphModule(self.module, self._outer.graph)

    def number_of(self, symbol: sympy.Symbol) -> object:
        """The symbol as an argument of a graph: a size, or a fake tensor that stands for a number."""
        environment = self._mode.shape_env
        hint_value = environment.backed_var_to_val.get(symbol)
        if not symbol_functions.is_float(symbol):
            return environment.create_symintnode(symbol, hint=None if hint_value is None else int(hint_value))
        with self._mode:
            fake = torch.empty((), dtype=torch.float64, device="cpu")
        hint = None if hint_value is None else float(hint_value)
        return stand_for_number(fake, environment.create_symfloatnode(symbol, hint=hint))

    def value_at(self, node: fx.Node, level: int) -> object:
        """The value of a node, with the history that it has before the part."""
        value = self._inputs.get(node, _value(node))
        if node in self._inputs or storage(node) not in self._changed or not value.requires_grad:
            return value
        before = [n for n in self.graph.nodes if self._order.levels[n] < level]
        writes = [n for n in before if any(storage(x) == storage(node) for x in written_nodes(n))]
        has_history = any(requires_grad(x) for n in (node, *writes) for x in n.all_input_nodes if x is not node)
        return value if has_history else value.detach()

    def _root_of(self, node: fx.Node) -> fx.Node:
        """The first node with the very same tensor, as before a call that writes into it and returns it."""
        value = _value(node)
        same = (x for x in node.all_input_nodes if isinstance(value, torch.Tensor) and _value(x) is value)
        return next((self.roots[x] for x in same), node)

    # ------------------------------------------------------------------ between programs

    def _check_deciders(self) -> None:
        has_states = any(_role(n) == "state" for n in self.graph.nodes)
        for node in self.graph.nodes:
            if not _decides(node):
                continue
            if isinstance(node.target, torch_operators.HigherOrderOperator):
                raise Unsupported(f"a size that only the data decides, inside of {node.target}")
            if has_states and any(requires_grad(n) for n in (node, *node.users)):
                raise Unsupported(
                    f"{node.name}, whose size only the data decide, has a gradient beside a change of mode"
                )

    def _sources(self) -> Iterator[tuple[sympy.Symbol, Callable[[], fx.Node]]]:
        """What makes each symbol in the outer graph."""
        for node in reversed(self.graph.nodes):
            paths = [*_readable(_value(node))] if node.op == "placeholder" else [*node.meta.get(BINDINGS, {}).items()]
            for symbol, path in paths:
                yield symbol, partial(self._read, node, path)

    def _read(self, node: fx.Node, path: Sequence[object]) -> fx.Node:
        return _follow(self._outer.graph, self._value_of[node], path)

    def _outside(self, value: object) -> object:
        """The value of an argument in the outer graph."""
        if not isinstance(value, fx.Node):
            return value
        root = self.roots[value]
        if root.op == "get_attr":
            return self._outer.graph.node_copy(root)
        return self._outer.of(_number(value)) if _role(root) == "number" else self._value_of[root]

    def _add_checks(self, node: fx.Node) -> None:
        """Of what a trace has assumed of sizes: it notes all but that an axis stays, which ``squeeze`` would drop, and
        that there is something of which ``max`` or ``min`` is wanted."""
        conditions = [(self._condition(node.args[0]), node.args[1])] if node.target is _CHECK else []
        for size, excluded, message in assumed_sizes.excluded_sizes(node):
            if excluded == 1 and not self._may_fail:
                raise Unsupported(f"{node.name} {message}")
            differs = self._outer.graph.call_function(operator.ne, (self._outer.of(size), excluded))
            conditions.append((differs, f"{node.name} {message}"))
        for condition, message in conditions:
            if isinstance(condition, fx.Node):
                self._outer.graph.call_function(check, (condition, message))
        if _asserts_number(node):
            self._outer.graph.call_function(assertion, (self._condition(node.args[0]), *node.args[1:]))

    def _condition(self, node: fx.Node) -> object:
        """A condition; a comparison of numbers is copied, over the values that they have in this call."""
        is_relation = isinstance(node, fx.Node) and node.target in COMPARISONS
        return self._outer.graph.node_copy(node, self._outside) if is_relation else self._outside(node)

    # ------------------------------------------------------------------ programs

    def _part(self, own: Sequence[fx.Node], level: int) -> None:
        if not own:
            return
        results = [n for n in dict.fromkeys(self.roots[n] for n in own if self._is_read(n, level)) if n in own]
        part = _Part(self, own, level)
        graph = part.build(results)
        _check_aliases(part.arguments, own)
        program = self._make(fx.GraphModule(self.module, graph), part.values)
        call = self._outer.graph.call_function(program, tuple(map(self._argument, part.arguments)))
        for k, node in enumerate(results):
            self._value_of[node] = self._outer.graph.call_function(operator.getitem, (call, k))

    def _is_read(self, node: fx.Node, level: int) -> bool:
        """Whether the value is read outside of its part."""
        users = [u for u in node.users if _role(u) != "number"]
        return isinstance(_value(node), torch.Tensor) and any(
            _role(u) != "part" or self._order.levels[u] != level for u in users
        )

    def _argument(self, argument: fx.Node | sympy.Symbol) -> fx.Node:
        if isinstance(argument, fx.Node):
            return self._value_of[argument]
        node = self._outer.symbol(argument)
        return self._outer.graph.call_function(number_tensor, (node,)) if symbol_functions.is_float(argument) else node


class _Part:
    """The graph of one part; ``arguments``: nodes whose values it takes, and symbols; ``values``: fake ones."""

    def __init__(self, cutter: _Cutter, own: Sequence[fx.Node], level: int) -> None:
        self._cutter, self._own, self._level = cutter, set(own), level
        self.arguments: list[fx.Node | sympy.Symbol] = []
        self.values: list[Any] = []
        self._known: dict[fx.Node, fx.Node] = {}
        self._numbers = _Numbers()

    def build(self, results: Sequence[fx.Node]) -> fx.Graph:
        """The graph that gives ``results``, which are nodes of the part."""
        nodes = [n for n in self._cutter.graph.nodes if n in self._own or _role(n) == "state"]
        used = [x for n in nodes for x in n.all_input_nodes]
        tensors = dict.fromkeys(self._cutter.roots[x] for x in used if self._is_argument(x))
        for symbol in sorted(_symbols([*tensors, *filter(_is_symbolic, used)]), key=str):
            self._add_symbol(symbol)
        for node in tensors:
            self._known[node] = self._placeholder(
                node, node.name, _value(node), self._cutter.value_at(node, self._level)
            )
            if node.op == "placeholder":
                self._known[node].meta = dict(node.meta)
        for node in nodes:
            self._known[node] = self._numbers.graph.node_copy(node, self._inside)
        self._numbers.graph.output(tuple(self._known[n] for n in results))
        return self._numbers.graph

    def _is_argument(self, node: fx.Node) -> bool:
        root = self._cutter.roots[node]
        is_made = root in self._own or root.op == "get_attr" or _role(root) in ("number", "state")
        return not (is_made or _is_symbolic(root))

    def _add_symbol(self, symbol: sympy.Symbol) -> None:
        value = self._cutter.number_of(symbol)
        node = self._placeholder(symbol, str(symbol), value, value)
        self._numbers.sources[symbol] = lambda: node if isinstance(value, torch.SymInt) else self._item(node)

    def _item(self, node: fx.Node) -> fx.Node:
        item = self._numbers.graph.call_method("item", (node,))
        item.meta["example_value"] = node.meta["example_value"].item_memo
        return item

    def _placeholder(
        self, argument: fx.Node | sympy.Symbol, name: str, value: object, argument_value: object
    ) -> fx.Node:
        node = self._numbers.graph.placeholder(name)
        node.meta["example_value"] = value
        self.arguments.append(argument)
        self.values.append(argument_value)
        return node

    def _inside(self, node: fx.Node) -> object:
        root = node if node in self._known else self._cutter.roots[node]
        if root not in self._known and root.op == "get_attr":
            self._known[root] = self._numbers.graph.node_copy(root)
        is_number = _role(root) == "number" or _is_symbolic(root)
        return self._numbers.of(_value(node)) if is_number else self._known[root]


def number_tensor(number: float) -> torch.Tensor:
    """A number as programs take it."""
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")


def _check_aliases(arguments: Iterable[object], own: Iterable[fx.Node]) -> None:
    """What a part writes into is one of its arguments, and no other shares its memory."""
    memories = [storage(x) for x in arguments if isinstance(x, fx.Node)]
    for memory in {storage(x) for n in own for x in written_nodes(n)}:
        if memories.count(memory) > 1:
            raise Unsupported("views of what is written into stand on both sides of a size that only the data decide")


def _readable(value: object) -> Iterator[tuple[sympy.Symbol, tuple[Any, ...]]]:
    """The symbols that an argument tells, and where."""
    pairs: list[tuple[Any, tuple[Any, ...]]] = [(value, ())]
    if isinstance(value, torch.Tensor):
        pairs = [(size, (CallMethodKey("size"), SequenceKey(k))) for k, size in enumerate(value.shape)]
        pairs.append((getattr(value, "item_memo", None), (CallMethodKey("item"),)))
    yield from ((v.node.expr, path) for v, path in pairs if isinstance(v, _SYMBOLIC) and v.node.expr.is_Symbol)


def _symbols(nodes: Iterable[fx.Node]) -> set[sympy.Symbol]:
    """The symbols in numbers, and in the extents and strides of tensors."""
    values = [_value(n) for n in nodes]
    sizes = [(*v.shape, *v.stride()) if isinstance(v, torch.Tensor) else v for v in values]
    return {s for v in tree_leaves(sizes) if isinstance(v, _SYMBOLIC) for s in v.node.expr.free_symbols}


def _unify(graph: fx.Graph, environment: Any) -> None:
    """Let symbols be one that checks, which are before what depends on it, say to be equal."""
    for node in graph.nodes:
        condition = node.args[0] if node.target is _CHECK else None
        if not isinstance(condition, fx.Node) or condition.target is not operator.eq:
            continue
        values = [_value(x) if isinstance(x, fx.Node) else x for x in condition.args]
        one, other = (v.node.expr if isinstance(v, torch.SymInt) else sympy.sympify(v) for v in values)
        for symbol, expr in ((one, other), (other, one)):
            is_decided = symbol.is_Symbol and symbol_functions.is_unbacked_integer(symbol)
            if is_decided and symbol not in expr.free_symbols:
                environment.replacements[symbol] = expr
                environment._replacements_version_counter += 1
                environment._update_version_counter()
                break


def _follow(graph: fx.Graph, node: fx.Node, path: Sequence[Any]) -> fx.Node:
    """The number that is at ``path`` in a value."""
    steps = list(path)
    while steps:
        step, following = steps.pop(0), steps[0] if steps else None
        if isinstance(step, CallMethodKey):
            axis = (steps.pop(0).idx,) if isinstance(following, SequenceKey) else ()
            node = graph.call_method(step.name, (node, *axis))
        elif isinstance(step, SequenceKey):
            node = graph.call_function(operator.getitem, (node, step.idx))
        elif isinstance(step, ConvertIntKey):
            node = graph.call_function(int, (node,))
        elif isinstance(step, DivideByKey):
            node = graph.call_function(operator.floordiv, (node, step.divisor))
        else:
            raise Unsupported(f"a size that is decided by {step}")
    return node


def _is_symbolic(node: fx.Node) -> bool:
    return any(isinstance(v, _SYMBOLIC) for v in tree_leaves(_value(node)))


def _is_number(value: object) -> bool:
    """A number, or the sizes of a tensor."""
    is_sizes = isinstance(value, torch.Size)
    return is_sizes or isinstance(value, (*_SYMBOLIC, bool, int, float))


def _number(node: fx.Node) -> object:
    """The value of a number; of a size what its tensor says, for before 2.13 PyTorch reads one that it has assumed to
    have a certain value as that value."""
    if node.target is not torch.ops.aten.sym_size.int:
        return _value(node)
    tensor, axis = node.args
    return _value(tensor).shape[axis]


def _value(node: fx.Node) -> torch.Tensor | torch.SymInt | torch.SymFloat:
    return node.meta.get("example_value")
