"""Refit: moving a weight version from the trainer to the generators."""
