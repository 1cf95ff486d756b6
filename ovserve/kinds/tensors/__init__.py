"""Plain models: tensors in, tensors out."""
