"""Generators: one protocol, a registry of backends."""
