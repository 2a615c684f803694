"""Rollouts: prompt groups, their seeds, and the worker that finishes them."""
