"""Policy trainers: one protocol, a registry of backends."""
