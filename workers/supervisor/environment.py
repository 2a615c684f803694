"""What the processes of a stack find in their environment, and how they are told from all others."""

import os
import sysconfig
from pathlib import Path

import workers
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.stack import TEMPORAL_UI_VARIABLE, TEMPORAL_VARIABLE

STACK_VARIABLE = "RATCHET_STACK"
"""In everything the supervisor starts, and inherited below: the RATCHET_HOME it belongs to. RATCHET_HOME
itself would not do: people export it in shells, and those must survive `ratchet down`."""

HEAD_VARIABLE = "RATCHET_HEAD_ID"
"""In every process of a Ray head: which start of the head it belongs to."""

_EXISTING_RAY_NEEDS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def stack_environment(home: Home, *, embedded_ray: bool = True) -> dict[str, str]:
    """The environment of every process of the stack.

    Ray's settings are not inherited (RAY_ADDRESS would lead to somebody else's cluster), except for the
    credentials of an existing cluster.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for name in (TEMPORAL_VARIABLE, TEMPORAL_UI_VARIABLE):  # children believe what the supervisor writes down
        environment.pop(name, None)
    environment |= {HOME_VARIABLE: str(home.root), STACK_VARIABLE: str(home.root)}
    environment |= _python_path()
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    if embedded_ray:
        environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(home.ray_token),
            # How long Ray's processes wait for a lost GCS before they end themselves.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
            # Ray would run actors at nice 15: on a busy machine they get a few percent of a core, and every
            # OpenMP region waits for the thread that got least. Training is what this machine is for.
            "RAY_worker_niceness": "0",
            # A SIGSTOPped actor gives its CPU share back after this, instead of 5 s.
            "RAY_kill_worker_timeout_milliseconds": "1000",
            # Keeps Ray from turning 127.0.0.1 into the host's address: the head listens on loopback only.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
    else:
        environment |= {name: os.environ[name] for name in _EXISTING_RAY_NEEDS if name in os.environ}
    return environment


def _python_path() -> dict[str, str]:
    """Lets children and actors import our packages from a checkout that is not installed."""
    root = Path(workers.__file__).resolve().parent.parent
    if str(root) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    others = [
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(root)
    ]
    return {"PYTHONPATH": os.pathsep.join([str(root), *others])}
