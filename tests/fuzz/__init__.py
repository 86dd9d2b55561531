"""Random PyTorch modules, compiled and compared with eager PyTorch and float64.

``python -m tests.fuzz 0:1000`` is for developers; the pytest file beside it for everybody.
"""
