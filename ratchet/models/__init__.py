"""Base models: where their files come from, and what their tensors are called."""
