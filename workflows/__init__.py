"""What happens, and in what order. Deterministic: only `ratchet.spec` and temporalio are imported here."""
