"""Steps that a strategy of distributed training is enacted by."""
