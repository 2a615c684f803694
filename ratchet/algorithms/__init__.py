"""Advantages, losses and token log-probabilities. Pure functions; nothing here knows of Ray or a run."""
