"""Measurements. Each module is a command that prints a short table for people and one JSON line last."""
