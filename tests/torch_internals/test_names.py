"""PyTorch has all private names that the room uses, as it uses them: what a new release has moved fails by its name."""

from __future__ import annotations

import inspect

import pytest
import torch

from daceopt.torch_internals import replacements
from tests.torch_internals.names import (
    ATTRIBUTES,
    PARAMETERS,
    has_attribute,
    is_of_release,
    is_private,
    parameters,
    private_names,
    resolve,
)

OF_CUDA = {
    f"torch._C.{name}" for name in ("_cuda_clearCublasWorkspaces", "_cuda_getDevice", "_cuda_getCurrentRawStream")
}


@pytest.mark.parametrize("name", private_names())
def test_name_exists(name: str) -> None:
    if name in OF_CUDA and not torch.backends.cuda.is_built():
        pytest.skip("PyTorch is built for the CPU")
    if is_of_release(name):
        resolve(name)
    else:
        with pytest.raises((AttributeError, ImportError)):
            resolve(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    """Those that we fill are there, in the order in which we fill them."""
    if not is_of_release(name):
        pytest.skip("this release has no such function")
    if inspect.isbuiltin(resolve(name)):
        pytest.skip("this release has it in C++: test_facades.py")
    known = parameters(resolve(name))
    assert [p for p in known if p in PARAMETERS[name]] == PARAMETERS[name], known


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str) -> None:
    cls = resolve(name)
    wanted = [a.split("|") for a in ATTRIBUTES[name] if is_of_release(f"{name}.{a}")]
    assert not [names for names in wanted if not any(has_attribute(cls, a) for a in names)]


@pytest.mark.parametrize("name", replacements.REPLACED)
def test_replaced_function(name: str) -> None:
    """What takes its place is called with these parameters; of branches, with those of each."""
    names = replacements.branches() if "*" in name else [name]
    assert names
    for own in names:
        owner, attribute = replacements.owner_of(own)
        assert parameters(getattr(owner, attribute)) == replacements.REPLACED[name][1].split()


def test_each_function_that_has_parameters_is_in_the_table() -> None:
    targets = {f"{m}.{replacements.RENAMED.get(p, p)}" for p, (m, _) in replacements.REPLACED.items()}
    targets |= {f"{module}.{path}" for path, (module, _) in replacements.REPLACED.items()}
    targets |= {f"{module}.{name}" for module, name in replacements.EXCHANGED.values()}
    targets |= {n for n in private_names() if not is_of_release(n)}
    functions = [n for n in private_names() if n not in targets | OF_CUDA and inspect.isfunction(resolve(n))]
    without = [n for n in functions if n not in PARAMETERS and parameters(resolve(n)) and not _is_read_only(n)]
    assert not without, "their parameters belong into parameters.txt"


def _is_read_only(name: str) -> bool:
    """Is it no function that we call: a method that is only compared or named?"""
    return name.endswith(("DICT_KEYS_MATCH", "_BatchNorm.forward"))


def test_what_is_private() -> None:
    assert is_private("torch._C") and is_private("torch.fx.experimental.proxy_tensor.make_fx")
    assert is_private("torch.distributed._broadcast_coalesced") and not is_private("torch.ops.aten._fft_r2c.default")
    assert not is_private("torch.fx.Graph") and not is_private("torch.__version__") and not is_private("daceopt._x")
