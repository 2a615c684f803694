"""What Prometheus finds of a session's data plane."""

import json
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from ratchet.data_plane.memory import MemoryStorage
from ratchet.spec.home import Home
from tests.unit.data_plane.conftest import PARTITION, Rig, a_group
from workers.actors.data_plane_metrics import offer


async def test_prometheus_finds_depth_flow_and_evictions_of_a_session(tmp_path: Path) -> None:
    rig = Rig("memory", MemoryStorage())
    await rig.plane.register_partition(PARTITION, ["train"])
    await rig.plane.put(PARTITION, [a_group(key) for key in range(3)])
    await rig.plane.lease(PARTITION, "train", "a", [0])
    await rig.plane.evict(PARTITION, [2], "stale")

    offer(Home(tmp_path), "demo", 4, rig.ledger.stats)
    (target,) = json.loads((tmp_path / "prometheus" / "data-plane-demo-4.json").read_text())
    assert target["labels"] == {"process": "data-plane-demo-4", "run": "demo"}
    async with httpx.AsyncClient() as client:
        page = await client.get(f"http://{target['targets'][0]}/metrics")
    families = text_string_to_metric_families(page.text)
    found = {
        (sample.name, *(value for name, value in sample.labels.items() if name != "partition")): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["ratchet_data_plane_depth", "train"] == 1
    assert found["ratchet_data_plane_leases",] == 1
    assert found["ratchet_data_plane_groups_in_total",] == 3
    assert found["ratchet_data_plane_rows_out_total",] == 2
    assert found["ratchet_data_plane_evicted_total", "stale"] == 1
    assert found["ratchet_data_plane_room_wait_seconds_total",] == 0
