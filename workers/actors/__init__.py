"""Ray actors: thin shells around the engine classes in `ratchet`. Nothing else defines an actor."""
