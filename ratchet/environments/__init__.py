"""Environments: where prompts come from and what scores the answers."""
