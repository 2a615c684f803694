"""Which mover a run spec asks for. A mover's module is loaded when it is chosen."""

from ratchet.refit.protocol import WeightReceiver, WeightSender
from ratchet.spec.run_spec import RefitSpec


def create_sender(spec: RefitSpec, prefix: str, host: str) -> WeightSender:
    """The trainer's end. `prefix` names the owner of what is staged (see `segments`); `host` is an address of
    this machine that generators reach."""
    if spec.transport == "http":
        from ratchet.refit.http import HttpSender

        return HttpSender(prefix, host, keep_two=spec.codec == "delta")
    from ratchet.refit.ipc import ShmSender

    return ShmSender(prefix)


def create_receiver(spec: RefitSpec) -> WeightReceiver:
    """A generator's end."""
    if spec.transport == "http":
        from ratchet.refit.http import HttpReceiver

        return HttpReceiver()
    from ratchet.refit.ipc import ShmReceiver

    return ShmReceiver()
