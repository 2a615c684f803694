"""What an engine says when it lives but cannot go on from where it is."""

from ratchet.spec.faults import ActorLost, Unavailable


class WeightsMissing(ActorLost):
    """A generator that does not hold the version it was asked to use. It takes a refit, not a new process."""


class GroupsMissing(Unavailable):
    """A data plane that lacks groups it was asked for. It takes a refill, not a new process."""
