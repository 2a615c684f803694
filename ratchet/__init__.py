"""The engine of Ratchet: it knows reinforcement learning, and does not know Temporal."""

__version__ = "0.1.0"
