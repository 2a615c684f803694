"""Asks a Ray cluster who it is: `python -m workers.supervisor.ray_probe HOST:PORT [FILE]` prints it,
as a RayIdentity, or writes it into the file.

A program of its own, to be killed when it takes too long: Ray's client never gives up on a dead address.
"""

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from workers.supervisor.files import write_atomically


class RayIdentity(BaseModel):
    """What a cluster says of itself, and what we are."""

    address: str
    """HOST:PORT of its GCS."""
    cluster_ray: str
    cluster_python: str
    our_ray: str
    our_python: str
    nodes: int
    """Living ones."""
    session: str
    """The cluster's own name for this life of it; another one has none of our actors."""


def ask(address: str) -> RayIdentity:
    import ray
    from ray._common.usage import usage_constants
    from ray._private import ray_constants
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # pyright: ignore[reportAttributeAccessIssue]

    client = GcsClient(address=address)
    raw = client.internal_kv_get(
        usage_constants.CLUSTER_METADATA_KEY, namespace=ray_constants.KV_NAMESPACE_CLUSTER
    )
    metadata = json.loads(raw or b"{}")
    nodes = client.get_all_node_info(timeout=5, state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
    return RayIdentity(
        address=address,
        cluster_ray=metadata.get("ray_version", "unknown"),
        cluster_python=metadata.get("python_version", "unknown"),
        our_ray=ray.__version__,
        our_python=".".join(str(part) for part in sys.version_info[:3]),
        nodes=len(nodes),
        session=(client.internal_kv_get(b"session_name", namespace=b"session") or b"").decode(),
    )


def main() -> None:
    address, *report = sys.argv[1:]
    answer = ask(address).model_dump_json()
    if report:
        write_atomically(Path(report[0]), answer)
    else:
        sys.stdout.write(answer + "\n")


if __name__ == "__main__":
    main()
