"""Starts the processes of a Ray head and ends: `python -m workers.supervisor.ray_launch REQUEST`.

`ray start` would do, a second slower and with three processes nobody needs (dashboard, autoscaler monitor,
client server). This uses Ray's own launcher, which is private: Ray is pinned to a minor version for it. The
request is a HeadRequest as JSON; the answer, a HeadReport, goes into a file.
"""

import os
import sys
from pathlib import Path

from pydantic import BaseModel

from workers.supervisor.files import write_atomically


class HeadRequest(BaseModel):
    """What the head is to be."""

    address: str
    first_port: int
    last_port: int
    temp_folder: str
    num_cpus: int
    object_store_bytes: int
    report: str
    """File for the HeadReport."""


class HeadReport(BaseModel):
    """The processes of the head that have no living parent."""

    gcs_server: int
    raylet: int
    session_folder: str


def launch(request: HeadRequest) -> HeadReport:
    """Start them. They outlive this process."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class HeadNode(Node):
        def start_api_server(self, *_args: object, **_named: object) -> None:
            """No dashboard: it is started even where it is not included, and serves nothing then."""

    port = request.first_port
    node = HeadNode(
        RayParams(
            node_ip_address=request.address,
            gcs_server_port=port,
            node_manager_port=port + 1,
            object_manager_port=port + 2,
            runtime_env_agent_port=port + 3,
            metrics_agent_port=port + 4,
            dashboard_agent_listen_port=port + 5,
            metrics_export_port=port + 6,
            min_worker_port=port + 7,
            max_worker_port=request.last_port,
            include_dashboard=False,
            include_log_monitor=False,  # pyright: ignore[reportArgumentType] - a bool, whatever Ray's hint says
            no_monitor=True,
            temp_dir=request.temp_folder,
            num_cpus=request.num_cpus,  # GPUs are found by Ray
            object_store_memory=request.object_store_bytes,
        ),
        head=True,
        shutdown_at_exit=False,
        spawn_reaper=False,
    )
    pids = {name: processes[0].process.pid for name, processes in node.all_processes.items()}
    return HeadReport(
        gcs_server=pids["gcs_server"], raylet=pids["raylet"], session_folder=str(node.get_session_dir_path())
    )


def main() -> None:
    request = HeadRequest.model_validate_json(sys.argv[1])
    report = launch(request)
    write_atomically(Path(request.report), report.model_dump_json())
    sys.stderr.flush()
    os._exit(0)  # Node's own cleanup must not run


if __name__ == "__main__":
    main()
