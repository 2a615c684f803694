"""What each backend can do."""

from ratchet.data_plane.protocol import Capabilities

CAPABILITIES = {
    "memory": Capabilities("memory", one_hop=False, survives_producer=True, reports_held=True),
    "simple": Capabilities("simple", one_hop=True, survives_producer=True, reports_held=True),
    "mooncake_cpu": Capabilities("mooncake_cpu", one_hop=True, survives_producer=True, reports_held=False),
    "ray": Capabilities("ray", one_hop=True, survives_producer=False, reports_held=True),
}
