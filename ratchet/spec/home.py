"""RATCHET_HOME: the one folder that holds everything an installation knows."""

import hashlib
import os
from pathlib import Path

HOME_VARIABLE = "RATCHET_HOME"
STORE_VARIABLE = "RATCHET_STORE"


class Home:
    """Paths inside the state folder. Creating a Home touches nothing on disk."""

    def __init__(self, root: str | Path | None = None) -> None:
        chosen = root or os.environ.get(HOME_VARIABLE) or Path.home() / ".ratchet"
        self.root = Path(chosen).expanduser().resolve()

    @property
    def tag(self) -> str:
        """Eight hex digits that stand for this folder where names must be short or unique on the host
        (Ray's temp folder, shared-memory segments)."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:8]

    @property
    def state_file(self) -> Path:
        """Addresses, ports and pids of the running stack, as JSON, written by the supervisor."""
        return self.root / "state.json"

    @property
    def max_sessions_file(self) -> Path:
        """What `ratchet up --max-sessions` was told last: a number, or `unlimited`."""
        return self.root / "max-sessions"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def prometheus(self) -> Path:
        """Where the metrics of every process are, for Prometheus (file_sd_configs)."""
        return self.root / "prometheus"

    @property
    def sinks(self) -> Path:
        """What webhooks did not take, by run."""
        return self.root / "sinks"

    @property
    def store_url(self) -> str:
        """RATCHET_STORE, like `postgresql://user@host/ratchet`; without it a SQLite file in this folder."""
        return os.environ.get(STORE_VARIABLE) or f"sqlite:///{self.root / 'store.db'}"

    @property
    def artifacts(self) -> Path:
        """Root of the local artifact store: checkpoints and journals."""
        return self.root / "artifacts"

    @property
    def models(self) -> Path:
        """Prepared base models, one folder per digest of their recipe."""
        return self.root / "models"

    @property
    def ray_token(self) -> Path:
        return self.root / "ray-token"

    @property
    def ray_temp(self) -> Path:
        """Ray's temp folder: short, since AF_UNIX paths end at 107 bytes."""
        return Path("/tmp") / f"ratchet-{self.tag}"

    def run_folder(self, run: str) -> Path:
        """Artifacts of one run: `journal/` and `checkpoints/` live below."""
        return self.artifacts / "runs" / run

    def session_folder(self, run: str, session: int) -> Path:
        """Scratch of a session on this host: its request, its ready file."""
        return self.root / "sessions" / f"{run}-{session}"
