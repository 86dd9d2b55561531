"""What loggers of PyTorch's compiler are called."""

HANDLERS = ("torch", "torch._dynamo", "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""Those whose handlers show what Dynamo says while it looks at a frame."""

NOISY = ("torch.fx", "torch._dynamo", "torch._functorch", "torch._subclasses")
"""Those above the ones that print advice and partial graphs of what is refused."""
