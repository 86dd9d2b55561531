"""Complex tensors inside of graphs, going in and coming out, against eager PyTorch."""

import pytest
import torch

from tests.capture.torch.checking import check

X = torch.cos(torch.arange(24.0) * 1.3).reshape(3, 8)
Z = torch.complex(X, torch.sin(torch.arange(24.0) * 0.7).reshape(3, 8))
W = Z.flip(0, 1).clone()


def as_complex(x):
    return x.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)


INSIDE = {
    "real_to_complex": lambda x: torch.view_as_real(as_complex(x) * (1 + 2j)) + as_complex(x[:, :1]).real[..., None],
    "fft_abs": lambda x: torch.fft.fft(x).abs(),
    "rfft_irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=8),
    "rfft2_power": lambda x: torch.fft.rfft2(x).abs().pow(2).sum(),
    "filter": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(x[:, :2]).detach()[:1, None], n=8),
    "polar": lambda x: torch.view_as_real(torch.polar(x.abs() + 1, x)),
    "complex_parts": lambda x: torch.complex(x, x * 2).imag * torch.complex(x * 3, x).real,
    "view_as_complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 4, 2)) * 2.0),
    "rotary": lambda x: torch.view_as_real(
        torch.view_as_complex(x.view(3, 4, 2)) * torch.polar(torch.ones(4), torch.arange(4.0))
    ).flatten(1),
    "conj_product": lambda x: (torch.fft.fft(x) * torch.fft.fft(x * 2).conj()).real,
    "angle": lambda x: torch.complex(x + 2, x).angle(),
    "real_times_number": lambda x: torch.view_as_real(x * (2 - 1j) + 1j * x[0]),
    "stft": lambda x: torch.stft(x, 4, 2, window=torch.ones(4), return_complex=True).abs(),
}
THROUGH = {
    "mul": lambda z, w: z * w,
    "mul_broadcast": lambda z, w: z * w[0],
    "add_sub": lambda z, w: z + w - w[:, :1],
    "scalar": lambda z, w: z * (1 + 2j) + w * 3,
    "conj": lambda z, w: z.conj() * w,
    "conj_result": lambda z, w: (z * w).conj(),
    "div": lambda z, w: z / w,
    "exp": lambda z, w: z.exp() + w,
    "views": lambda z, w: z.view(2, 12).t()[1:, 0].unsqueeze(0).expand(3, -1) * 2,
    "permute": lambda z, w: z.permute(1, 0) @ w,
    "cat": lambda z, w: torch.cat([z, w], -1).transpose(0, 1),
    "stack": lambda z, w: torch.stack([z, w], -1),
    "flip_roll": lambda z, w: z.flip(-1) + w.roll((1, -2), (0, -1)),
    "nothing": lambda z, w: torch.linalg.inv(z[:0, :3, None] * w[:0, None, :3]),
    "select": lambda z, w: z[..., -1] * w[0, 0],
    "real_times_complex": lambda z, w: z.real[:, :4] * w[:, ::2],
    "neg": lambda z, w: -z.squeeze() + w.imag,
    "wider": lambda z, w: z.to(torch.complex128) + w,
    "abs_sum": lambda z, w: (z * w).abs().sum(),
}


@pytest.mark.parametrize("name", INSIDE)
def test_inside(name):
    check(INSIDE[name], X, native=False)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", THROUGH)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_through(name, dtype):
    check(THROUGH[name], Z.to(dtype), W.to(dtype), native=False)


NATIVE = {
    **{
        name: THROUGH[name]
        for name in "mul conj views cat real_times_complex add_sub scalar div exp permute abs_sum".split()
    },
    "log": lambda z, w: z.log() - w,
    "sgn": lambda z, w: (z * w).sgn(),
    "angle": lambda z, w: (z * w).angle(),
    "polar": lambda z, w: torch.polar(z.real.abs() + 1, w.real) * z,
    "sine": lambda z, w: z.sin() + w.cos(),
    "square": lambda z, w: z**2 + w.square(),
    "reciprocal": lambda z, w: 1 / z + 2j / w,
    "real_numerator": lambda z, w: z.real / w,
    "real_divisor": lambda z, w: z / (w.real + 3) + w / 4,
    "real_summands": lambda z, w: z + w.real - (1 - z) + 3 - 2j,
    "sums": lambda z, w: z.sum(0) + w.mean(-1).sum() - z.mean(),
    "kept_sum": lambda z, w: z - w.sum(-1, keepdim=True),
    "where": lambda z, w: torch.where(z.real > 0, z, w),
    "equal": lambda z, w: z * (z == w).float() + w * (w != 0),
    "batch": lambda z, w: z.reshape(2, 3, 4) @ w.reshape(2, 4, 3),
    "row": lambda z, w: z[:1] @ w.T,
    "column": lambda z, w: z @ w[:1].T,
    "einsum": lambda z, w: torch.einsum("bix,iox->box", z.view(2, 3, 4), w.view(3, 2, 4)),
    "diagonal_states": lambda z, w: torch.einsum("hn,hnl->hl", z[:, :4], torch.exp(w[:, :4, None] * torch.arange(3.0))),
    "range": lambda z, w: (z * 1e25) / (w * 1e25),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_native(name, dtype):
    check(NATIVE[name], Z.to(dtype), W.to(dtype))


@pytest.mark.parametrize("name", ["div", "sgn", "angle", "abs_sum", "log"])
def test_at_zero(name):
    """Derivatives as PyTorch defines them where there is none."""
    z = Z.clone()
    z[0, :3] = torch.tensor([0, -1, 1j])
    check(NATIVE[name], z, W)


SPECTRA = {
    "even": lambda x: torch.fft.rfft(x).abs(),
    "odd": lambda x: torch.fft.rfft(x[:, 1:]).abs(),
    "padded": lambda x: torch.fft.rfft(x, n=11, norm="ortho").abs(),
    "columns": lambda x: torch.fft.rfft(x, dim=0, norm="forward").abs(),
    "images": lambda x: torch.fft.rfft2(x, norm="ortho").abs(),
    "one": lambda x: torch.fft.rfft(x[:, :1]).abs(),
    "both": lambda x: torch.view_as_real(torch.fft.rfft(x, dim=0)).cumsum(0),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_of_real_numbers(name):
    check(SPECTRA[name], X + 0.1, native=False)


@pytest.mark.parametrize("name", ["mul", "views", "select", "div"])
def test_symbolic_sizes(name):
    check(THROUGH[name], Z, W, native=False, dynamic=True)


def test_transposed_results_and_inputs():
    check(lambda z: (z * 2, z.t() * 3), Z.t(), native=False)


@pytest.mark.parametrize("make", [lambda z: z.conj(), lambda z: z.conj().imag, lambda z: z.imag])
def test_pending_conjugation_and_negation_of_inputs(make):
    from tests.capture.torch.checking import make_backend
    from tests.capture.torch.interpreted import compile_interpreted

    backend = make_backend(compile_interpreted)
    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(backend, nopython=True)(lambda z: z * 2.0)
    assert torch.equal(compiled(make(Z)).resolve_conj(), make(Z) * 2.0)


def test_pending_negation_of_gradients():
    z, x = Z.clone().requires_grad_(), X.clone().requires_grad_()

    def fn(z, x):
        return z * 3.0, x * 2.0

    from tests.capture.torch.checking import make_backend
    from tests.capture.torch.interpreted import compile_interpreted

    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    found = torch.autograd.grad(compiled(z, x), [z, x], [W.conj(), W.conj().imag])
    expected = torch.autograd.grad(fn(z, x), [z, x], [W.conj(), W.conj().imag])
    assert all(torch.equal(a.resolve_conj(), b.resolve_conj()) for a, b in zip(found, expected))


def _in_slices(x):
    z = torch.fft.rfft(x)
    out = torch.zeros_like(z)
    out[..., 1:3] = z[..., 1:3] * (2 + 1j)
    out[..., 3:] = x[:, :2]  # real numbers
    return torch.fft.irfft(out, n=8)


def _in_rows(x):
    out = torch.zeros(3, 8, dtype=torch.complex64)
    out[1] = torch.complex(x[0], x[2])
    out[:, -1] += x.sum()
    return torch.view_as_real(out)


def _on_the_diagonal(x):
    out = torch.complex(x, x.flip(0)) * 2.0
    out.diagonal().copy_(x[:, 0] * 1j)
    return torch.view_as_real(out)


@pytest.mark.parametrize("written", [_in_slices, _in_rows, _on_the_diagonal])
def test_parts_are_written(written):
    check(written, X, native=False)
