"""The `ratchet` command: a client of the API. Only `ratchet up` and its kin run something here."""
