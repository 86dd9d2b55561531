"""What is said of the kinds of graph breaks that Dynamo names in words of its own (``graph_break_registry.json``).

Data alone, from the particular to the general: the first kind whose pattern is found in the name that Dynamo gives.
"""

from __future__ import annotations

from daceopt.modules.hints import Hint, kind

_OUTSIDE = "take it out of forward"
_AROUND = "enter it around the call of the model"
_INIT = "make it in __init__"
_PLAIN = "numbers, strings, tensors, and lists, tuples and dicts of these"
_METHODS = "plain attributes and methods"
_PURE = "functions that return what they compute, from their arguments alone"
_DIFFERENTIATE = "torch.autograd.grad of what forward itself computes, or derivatives outside of the model"

KINDS: tuple[Hint, ...] = (
    # what PyTorch itself refuses
    kind(
        r"(?:RuntimeError|TypeError) when making fake tensor call|^Fake tensor prop|^Tensor device mismatch)"
        r"(?:.*? got \w+\(['\"]([^\n]*?)['\"],?\)",
        r"PyTorch refuses this call: \1",
    ),
    kind(
        r"when making fake tensor call|^Fake tensor propagation|^Tensor device mismatch|when running FX node"
        r"|fake tensors|meta kernel|^Missing FakeTensor|missing fake impl|real value|op packet|call_method node"
        r"|PT2-compliant",
        "PyTorch cannot tell the shapes of what it computes, or refuses it",
    ),
    kind(r"^Observed exception.*?raised exception (\w+)\(", r"\1 is raised: an exception that forward does not catch"),
    kind("^Observed exception", "an exception is raised that forward does not catch"),
    kind(
        r"^TypeError from user|failed to bind|[Vv]ariadic function call|^Unhandled args|^invalid call|^bad args"
        r"|^All __torch_function__|^[Ii]mport failure|^Bad import|^invalid args|^missing args",
        "a call with arguments that the function does not take, as far as tracing can tell",
    ),
    kind("deleted variable|(?:undefined|uninitialized) (?:local|variable|cell)", "a variable has no value yet"),
    kind("key not found", "a dict does not hold the key"),
    kind("wrap RNN", "an RNN, GRU or LSTM is called in a way that cannot be traced"),
    kind("is_inference", "forward asks for the inference mode", "torch.is_grad_enabled()"),
    # calls of functions for which PyTorch traces a body
    kind(
        r"^HOP: (?:Unsafe|Non-null)|(?:input mutation|aliasing) during higher|^nn\.Module mutation in Higher",
        "a function that PyTorch calls (of torch.cond, a checkpoint, a hook or a transform) changes what lies outside",
        _PURE,
    ),
    kind(
        r"HOP\b|higher.?order|^Wrap\w+|^wrap_with|^(?:invoke|strict)_\w+|^hints_wrapper|^out_dtype"
        r"|set_subgraph|^cannot unwrap|functorc?h"
        r"|non-single Tensor return|^torch\.func\.functional_call|^proxy not set",
        "a function that PyTorch calls (of torch.cond, a checkpoint, a hook or a transform) takes or returns other"
        " things than tensors",
        _PURE,
    ),
    kind(
        r"^(torch\.(?:cond|while_loop|scan|associative_scan|map))\b",
        r"\1 is called in a way that cannot be traced",
        "both of its functions over the same tensors, with results of the same shapes and dtypes",
    ),
    kind("to proxy|^Unsupported argument type in tensor", "a function of PyTorch is called with an object", _PLAIN),
    # derivatives
    kind(
        r"^_?autograd\.?_?grad\b|^_autograd_grad|autograd\.grad|^backward\(\)|Tensor\.backward|grad_fn|"
        r"_ImperativeEngine|^Tensor\.retain_grad|sparse_grad",
        "gradients are taken inside of forward, of what does not begin in it or goes on behind it",
        _DIFFERENTIATE,
    ),
    kind(
        r"autograd\.Function|^AutogradFunction|^autograd_function|[Uu]nsupported custom [jv][vj]p",
        "a torch.autograd.Function is written in a way that cannot be traced",
        "static methods forward and backward, over tensors and constants, with ctx.save_for_backward",
    ),
    kind(
        r"requires_grad(?!=| argument)",
        "requires_grad of a tensor is changed inside of forward",
        "detach(), torch.no_grad(), or requires_grad_() before the call of the model",
    ),
    kind(r"hook|RemovableHandle", "a hook that cannot be traced", "hooks on modules or parameters, outside of forward"),
    kind("dtype mismatch between tensor and its gradient", "a gradient has another dtype than its tensor"),
    # tensors
    kind(r"data attribute", "a tensor's .data is set to another kind of tensor", "copy_() under torch.no_grad()"),
    kind(r"^Unsupported Tensor\.(\w+)\(\)|^Tensor\.(\w+?)_? op|^Inplace op", r"a tensor's \1\2, which is not traced"),
    kind(r"^Unhandled tensor method.*?method `(\w+)`", r"a tensor's \1, which is not traced"),
    kind(r"out=", "out= takes tensors of another shape, or strided ones", "the result itself"),
    kind(
        "[Tt]ensor subclass|as_subclass|__torch_function__|torch function mode", "a subclass of torch.Tensor, or a mode"
    ),
    kind(
        r"torch\.nn\.Parameter|requires_grad=|^Uninitialized nn|parameter construction",
        "a parameter or module is made",
        _INIT,
    ),
    kind(
        r"SymInt|SymNode|symbolic shapes|guard_scalar|_ntuple|one_hot|torch\.Size|list_richcompare_ordering",
        "a size, or a number, that changes between calls is used where a constant has to be",
    ),
    kind("index.Tensor|Indexing", "a list is indexed by a tensor", "keep the number a tensor"),
    kind(
        "^Tensor|tensor object identity|Data pointer|COW tensor",
        "tensors are told apart by where they lie, or by identity",
    ),
    kind("set with tensors", "a set of tensors", "a list or a dict"),
    kind("broadcast", "tensors of shapes that do not broadcast are compared"),
    # NumPy
    kind(
        r"numpy.*?numpy function: <[^>]*?(\w+)(?: at 0x\w+)?>",
        r"NumPy's \1 cannot be traced",
        "the function of PyTorch's",
    ),
    kind(r"ndarray.*?`ndarray\.(\w+)", r"NumPy's ndarray.\1 cannot be traced", "the method of a tensor, or a function"),
    kind("[Nn]um[Pp]y|ndarray", "a function of NumPy's that cannot be traced is called", "the function of PyTorch's"),
    # objects that live across a break, or leave forward
    kind(
        r"reconstruct|escaped|^nested function with|returning intermediate|weakref|Frozen dataclass"
        r"|in output",
        "an object that forward makes leaves it, or is needed behind a graph break",
        _PLAIN,
    ),
    # context managers, generators, iterators, loops
    kind("contextmanager|contextlib|context manager|autocast|record_function", "a context manager is made", _AROUND),
    kind("[Gg]enerator (?:method)|random\\.Random", "random numbers of a generator of the model's own"),
    kind("generator|infinite", "a generator is called", "a list"),
    kind(
        r"tp_iter|next\(\)|iter\(\)|itertools|^Failed to unpack|UNPACK|Length mismatch|deque|enumerate"
        r"|virtual iteration",
        "an iterator, or an unpacking, that cannot be traced",
        "a loop over a list, a tuple, a dict or a range",
    ),
    kind("graph break in loop|comprehension", "the graph breaks inside of a loop or comprehension"),
    kind("Graph break in inlined|partial graph", "the graph breaks in a function that is called"),
    # objects
    kind("richcompare|comparison|compare|equality", "objects are compared that cannot be traced", _PLAIN),
    kind("hash|id\\(\\)|call_id|FakeId", "the hash or identity of an object is asked for", "a string as the key"),
    kind(r"repr|str\(\)|str_impl|BUILD_STRING|format", "a text is made of what is computed", _OUTSIDE),
    kind("copy\\.deepcopy|deepcopy", "an object is copied by copy.deepcopy", _OUTSIDE),
    kind("__len__|len_impl|mp_|sq_|subscript|__[gs]etitem__|item", "an item, or the length, of an object", _PLAIN),
    kind(
        "nb_|number slot|tp_as_number|vars\\(\\)|cast\\(\\)|isinstance|issubclass|typing",
        "an object is converted",
        _PLAIN,
    ),
    kind(r"LOAD_BUILD_CLASS|__build_class__|class construction|^__class__", "a class is made or changed", _OUTSIDE),
    kind(
        r"^Unsupported method call.*?method `([^`]+)` of class `([^`]+)`",
        r"the method \1 of \2 cannot be traced",
        _OUTSIDE,
    ),
    kind(
        r"^Unsupported function call \(delayed\).*?calling `([\w.]+)`", r"\1 is Python that cannot be traced", _OUTSIDE
    ),
    kind(
        "nn\\.module|ScriptModule|super\\(\\)|super getattr", "an attribute of a module that cannot be traced", _METHODS
    ),
    kind("TorchScript|torch\\.jit|JIT|ScriptObject", "TorchScript, which is not traced", "the module itself"),
    kind("opaque|Placement", "an object of a kind that PyTorch does not look into"),
    kind(
        r"distributed|P2P|FSDP|async_op|collective",
        "an exchange between processes that cannot be traced",
        "the blocking functions of torch.distributed",
    ),
    kind(
        "triton|tma_|FlexAttention|SDPAParams|accelerator|event method|device_module", "a kernel or stream of a device"
    ),
    kind(
        r"torch\._dynamo|Comptime|step_unsupported|leaf.function|nonstrict|nested graph break|torch\.compile call"
        r"|assume_constant|strict mode|[Ss]trict",
        "a directive to PyTorch's tracer",
    ),
    kind(
        r"attr|mutation|mutate|immutable|globals|descriptor|__dict__|mro|\bclass\b|user.defined|Enum|namedtuple"
        r"|dataclass|TypedDict|object|mappingproxy",
        "an object's attributes are used in a way that cannot be traced",
        _METHODS,
    ),
    kind(r"^Backend compiler exception", "a compiler of PyTorch's own failed"),
    kind(
        r"attempted|constant|bytecode|handler|[A-Z]{3,}_[A-Z]|sourceless|inline|CLEANUP|SEND|builtins|functions? call"
        r"|Variable|Python constant|skip|config|placeholder|unconverted|tp_init",
        "Python that cannot be traced",
        _OUTSIDE,
    ),
)
