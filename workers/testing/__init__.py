"""`ratchet[testing]`: a pytest plugin with Temporal servers and golden-history replay."""
