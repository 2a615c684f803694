"""Operation handles: submit, poll, cancel; the conductor that carries them out; the wire to it."""
