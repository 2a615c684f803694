"""What a run began with, beside its checkpoints: enough to go on when store and history are both gone."""

from pydantic import ValidationError

from ratchet.artifacts.durable import create_once, make_folder, storage_faults
from ratchet.artifacts.store import ArtifactStore
from ratchet.spec.faults import Conflict, StorageFault
from ratchet.spec.state import RunInput

BEGINNING_NAME = "beginning.json"


def claim_beginning(store: ArtifactStore, first: RunInput) -> None:
    """Write it down before anything begins, for one caller only. The very same again: no effect.

    Raises StorageFault, and Conflict if a run of that id began with something else.
    """
    run, content = first.state.run, first.model_dump_json(indent=1).encode()
    path = store.local_folder(_key(run))
    with storage_faults(path, "write"):
        make_folder(path.parent)
        create_once(path, content)
        if path.read_bytes() != content:
            raise Conflict(
                f"there is a run {run} already: choose another id, or go on with that run by "
                f"`ratchet run resume {run}`"
            )


def keep_beginning(store: ArtifactStore, first: RunInput) -> None:
    """Write it down, or write it anew once a run has begun again. Raises StorageFault."""
    store.write_atomic(_key(first.state.run), first.model_dump_json(indent=1).encode())


def read_beginning(store: ArtifactStore, run: str) -> RunInput | None:
    """What `run` began with; None if nobody wrote it down. Raises StorageFault, also if it is damaged."""
    if not store.exists(_key(run)):
        return None
    try:
        return RunInput.model_validate_json(store.read(_key(run)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its start"
        path = store.local_folder(_key(run))
        raise StorageFault(
            f"{path} cannot be read at {where} ({first['msg'].lower()}): damaged, or of another version"
        ) from None


def forget_beginning(store: ArtifactStore, run: str) -> None:
    """The run never began after all. Nothing there is no error. Raises StorageFault."""
    store.remove_tree(_key(run))


def _key(run: str) -> str:
    return f"runs/{run}/{BEGINNING_NAME}"
