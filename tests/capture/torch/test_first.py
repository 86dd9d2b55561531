import torch
from tests.capture.torch.checking import check

def test_linear():
    check(lambda x, w, b: (torch.relu(torch.nn.functional.linear(x, w, b)) * 2.5).t(), torch.randn(4, 6), torch.randn(5, 6), torch.randn(5))

def test_custom():
    class STE(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(x)
            return torch.relu(x) * 2
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 + x, None
    check(lambda x: STE.apply(x, 3) + x, torch.randn(4, 6))
def test_host():
    check(lambda x: torch.special.i1(x) + x, torch.randn(4, 6), native=False)
def test_max():
    check(lambda x: torch.max(x, 1), torch.randn(4, 6), native=False)
def test_bf16():
    check(lambda x: torch.max(x, 1)[0]*2, torch.randn(4, 6).bfloat16(), native=False)
def test_mut():
    def f(x, b):
        b.add_(x.detach())
        return x * b, b
    def g(x):
        b = x * 3
        b.mul_(x)
        b[:, 1].add_(x[:, 0])
        return b
    check(g, torch.randn(4, 6), native=False)
def test_dyn():
    check(lambda x: torch.max(x * 2, 1)[0].view(2, -1), torch.randn(4, 6), native=False, dynamic=True)
