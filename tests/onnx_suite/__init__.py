"""ONNX's own backend tests, run through ``daceopt.onnx_backend`` in batches: many models in one library, no crash
hides another result. ``python -m tests.onnx_suite`` is for developers; the pytest files beside it for everybody."""
