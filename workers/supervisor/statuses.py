"""How the parts of a running stack are, for state.json."""

from collections.abc import Iterator

from workers.supervisor.children import Child
from workers.supervisor.ray_existing import ExistingRay
from workers.supervisor.ray_head import RayHead
from workers.supervisor.state import PartStatus


def child_status(child: Child, address: str | None) -> PartStatus:
    return PartStatus(
        name=child.plan.name,
        state=child.phase,
        pid=child.pid,
        address=address,
        starts=child.starts,
        last_end=child.last_end,
        log=str(child.plan.log),
    )


def head_statuses(head: RayHead | ExistingRay) -> Iterator[PartStatus]:
    """Of a head of our own, and of its GCS, which has a life of its own."""
    if isinstance(head, ExistingRay):
        yield PartStatus(
            name="ray",
            state="existing" if head.up else "away",
            address=head.name,
            last_end=head.last_end,
        )
        return
    log = str(head.log)
    yield PartStatus(
        name="ray",
        state=head.phase,
        pid=head.pid,
        address=head.address,
        starts=head.starts,
        last_end=head.last_end,
        log=log,
    )
    yield PartStatus(
        name="ray-gcs",
        state=head.phase,
        pid=head.gcs_pid,
        starts=head.gcs_starts,
        last_end=head.gcs_last_end,
        log=log,
    )
