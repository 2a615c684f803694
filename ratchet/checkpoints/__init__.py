"""Checkpoints: a snapshot is written, digested, and committed by its manifest."""
