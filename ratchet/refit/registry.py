"""Which mover a run spec asks for. A mover's module is loaded when it is chosen."""

from ratchet.artifacts.store import LocalArtifactStore
from ratchet.refit.protocol import WeightReceiver, WeightSender
from ratchet.spec.home import Home
from ratchet.spec.run_spec import RefitSpec


def create_sender(spec: RefitSpec, home: Home, run: str, prefix: str, host: str) -> WeightSender:
    """The trainer's end. `prefix` names the owner of what is staged (see `segments`); `host` is an address of
    this machine that generators reach."""
    keep_two = spec.codec == "delta"
    match spec.transport:
        case "ipc":
            from ratchet.refit.ipc import ShmSender

            return ShmSender(prefix)
        case "http":
            from ratchet.refit.http import HttpSender

            return HttpSender(prefix, host, keep_two=keep_two)
        case "collective":
            from ratchet.refit.collective import CollectiveSender

            return CollectiveSender(prefix, host, keep_two=keep_two)
        case "store":
            from ratchet.refit.store import StoreSender

            store = LocalArtifactStore(home.artifacts)
            return StoreSender(store, weights_key(run), prefix, keep_two=keep_two, full_every=spec.full_every)


def create_receiver(spec: RefitSpec, home: Home, run: str) -> WeightReceiver:
    """A generator's end."""
    match spec.transport:
        case "ipc":
            from ratchet.refit.ipc import ShmReceiver

            return ShmReceiver()
        case "http":
            from ratchet.refit.http import HttpReceiver

            return HttpReceiver()
        case "collective":
            from ratchet.refit.collective import CollectiveReceiver

            return CollectiveReceiver()
        case "store":
            from ratchet.refit.store import StoreReceiver

            return StoreReceiver(LocalArtifactStore(home.artifacts), weights_key(run))


def weights_key(run: str) -> str:
    """Where the versions of a run are in the artifact store."""
    return f"runs/{run}/weights"
