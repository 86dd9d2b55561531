"""What is said of each kind of graph break and refusal, in the user's words, and what to write instead.

Data alone: the first kind whose pattern is found in what PyTorch, or the compiler, says; those of ``break_kinds`` come
after these.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Hint(NamedTuple):
    """``reason``: with groups of ``pattern``, as ``re.Match.expand`` writes them; ``instead``: empty where unknown."""

    pattern: re.Pattern[str]
    reason: str
    instead: str = ""


def _hint(pattern: str, reason: str, instead: str = "") -> Hint:
    return Hint(re.compile(pattern, re.DOTALL), reason, instead)


def kind(pattern: str, reason: str, instead: str = "") -> Hint:
    """Of what the first line says, where Dynamo names the kind of a graph break; in letters of either case."""
    return _hint(rf"(?i)\A[^\n]*?(?:{pattern})", reason, instead)


_OUTSIDE = "take it out of forward"
_EFFECT = f"{_OUTSIDE}, or into a forward hook"
_MASKS = "torch.where(mask, a, b), or a product with the mask, which keep the shape"
_SELECTING = r"nonzero|masked_select|_?unique\w*|bincount|repeat_interleave"
_BRANCH = "a branch depends on what a tensor holds"
_INSTEAD_OF_BRANCH = (
    "torch.where where both sides are cheap, torch.cond where they are not, or decide outside of the model"
)
_ITEMS = "keep the number a tensor, or read it outside of the model"
_DENSE = "programs are over dense ones"
_AROUND = "enter it around the call of the model"
_PADDED = "a padded tensor with a mask"

HINTS: tuple[Hint, ...] = (
    # what data decide
    _hint("^Data-dependent assertion|^an assert on the values", "an assertion depends on what a tensor holds", _ITEMS),
    _hint("^Data-dependent branching", _BRANCH, _INSTEAD_OF_BRANCH),
    _hint(
        rf"^Dynamic shape operator.*?Operator `(?:aten\.)?({_SELECTING})[\w.]*`"
        rf"|(?:aten)[.:]+({_SELECTING})(?:\.\w+)?\W*$",
        r"the size of what \1\2 gives depends on what a tensor holds",
        _MASKS,
    ),
    _hint(
        r"^Dynamic shape operator.*?Operator `(?:aten\.)?(\w+)[\w.]*`",
        r"the size of what \1 gives, or keeps, depends on what a tensor holds",
    ),
    _hint("Could not guard on data-dependent expression.*?Size-like symbols: none", _BRANCH, _INSTEAD_OF_BRANCH),
    _hint(
        "Could not guard on data-dependent expression",
        "a branch, or a shape, depends on a size that only the data decide",
        "torch._check(condition) where it always holds; torch.where where it does not",
    ),
    _hint(
        "Could not extract specialized integer from data-dependent expression",
        "a loop, or an index into a list, depends on a number that only the data decide",
        _ITEMS,
    ),
    _hint(
        r"^Runtime assertion failed for expression|(drops an axis whose size the data decide)",
        "sizes that the data decide are not as the program was compiled for: 1 where others are more, say",
    ),
    _hint("^Dynamic slicing with Tensor", "a tensor says where a slice begins or ends", _ITEMS),
    _hint(
        r"^(Data dependent operator|Unsupported Tensor\.(item|tolist)|Tensor\.(item|tolist|numpy))|_local_scalar_dense",
        "a number is read out of a tensor (by item, tolist, int, float or as an index)",
        _ITEMS,
    ),
    _hint("^Indexing list with non-scalar tensor", "a list is indexed by a tensor", _ITEMS),
    # effects outside of tensors
    _hint("builtin operator `print`", "print writes to the terminal", _EFFECT),
    _hint("builtin operator `open`", "a file is opened", _OUTSIDE),
    _hint(r"^logging\.Logger method|module: logging", "a logger is called", _EFFECT),
    _hint(r"module: _?warnings\b", "a warning is given", _EFFECT),
    _hint(r"module: time, qualname: (\w+)", r"time.\1 reads a clock", _EFFECT),
    _hint(r"module: (_?random|numpy\.random\S*), q", "random numbers, but not PyTorch's", "torch.rand or torch.randn"),
    # Python
    _hint(r"module: (\S+), qualname: (\S+?), skip", r"\1.\2 is Python that cannot be traced", _OUTSIDE),
    _hint(
        r"^Attempted to inline function marked as skipped.*?function `(\S+?)` should not",
        r"\1 is not to be traced (torch.compiler.disable, or a function of PyTorch's own)",
        _OUTSIDE,
    ),
    _hint(
        r"GetAttrVariable\(TensorVariable\(\), persistent\)",
        "an nn.Buffer is assigned to a buffer of its module, as by self.p = self.p.to(...) that changes nothing",
        f"register_buffer in the place of nn.Buffer; or {_OUTSIDE}",
    ),
    kind(r"torch\.compiler\.disable", "a function that torch.compiler.disable keeps from being traced is called"),
    _hint(
        r"^Failed to trace builtin operator.*?builtin operator `(\S+?)` with argument types (\[.*?\])",
        r"Python's \1 of \2 cannot be traced",
        _OUTSIDE,
    ),
    _hint(
        r"^Unsupported context manager.*?enter a `(\S+?)`",
        r"a context manager, \1, is entered",
        _AROUND,
    ),
    _hint(
        "GenericContextWrappingVariable|^record_function escaped",
        "the graph breaks inside of a context manager",
        _AROUND,
    ),
    _hint("^Attempt to trace generator", "a generator is called", "a list"),
    _hint("^Excessive RestartAnalysis", "tracing it came to no end: a number in it changes what is traced"),
    kind(
        "(?:recompile|cache) limit",
        "it was compiled as often as PyTorch allows: what it is compiled for changes with calls",
    ),
    # hooks
    _hint(
        r"intermediate hooks requires|^Module-level backwards hooks|(?:register_hook|hooks?).*compiled autograd",
        "hooks on gradients, of a kind that runs in Python alone",
        "hooks on parameters, or on results outside of the model",
    ),
    # kinds of tensors
    _hint(
        r"^Attempted to wrap sparse Tensor|^Sparse tensor creation|layout torch\.sparse_\w+",
        f"a sparse tensor: {_DENSE}",
        "a dense tensor; index_add_ or scatter_add_ over the edges of a graph; Embedding(sparse=False)",
    ),
    _hint(r"has layout torch\.jagged|strided NestedTensor", f"a nested tensor: {_DENSE}", _PADDED),
    _hint("is a (FakeScriptObject|DTensor|DeviceMesh)", "a distributed tensor: programs are over those of one process"),
    # what is written into
    _hint(r"(\w+ writes into \w+, which requires a gradient)", r"\1", "the same without out= or inplace=True"),
    _hint(
        r"^torch\.\* op returned non-Tensor.*?value type: (\w+).*?target: (?:<Wrapped \w+ <original )?([^\s>]+)",
        r"\2 returned a non-Tensor, of type \1",
        "ask before the call of the model",
    ),
    _hint(
        r"(a transform of torch\.func that differentiates, inside of forward)",
        r"\1",
        "torch.autograd.grad with create_graph=True, or the transform around the model",
    ),
    # what is active around the call
    _hint("(hooks of all modules are registered)", r"\1", "hooks on the modules that they are about"),
    _hint(r"(a mode of functions is active \(\w+\))", r"\1", "the mode around what is not optimized"),
    _hint(r"^NotImplementedError:?\s*(While|$)", "PyTorch cannot tell the shapes of what it computes"),
    _hint("^TraceError: symbolically traced variables", "a branch depends on a number that changes between calls"),
)
