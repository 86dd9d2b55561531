"""PyTorch's own database of operators and modules, run through the PyTorch front end beside eager PyTorch.

``python -m tests.opinfo [PATTERN]`` is for developers; the pytest files beside it for everybody.
"""
