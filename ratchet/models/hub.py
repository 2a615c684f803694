"""Models of the Hugging Face Hub, through its own cache, so that what was fetched before works offline."""

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

from ratchet.models.names import check_folder, model_problem
from ratchet.spec.deadlines import MODEL_DOWNLOAD

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_PR_SET_PDEATHSIG = 1


def recipe(name: str) -> dict[str, object]:
    """The first download of a name decides its revision for this RATCHET_HOME."""
    return {"version": 1, "hub": name}


def build_from_hub(name: str, folder: Path, deadline: float = MODEL_DOWNLOAD) -> None:
    """Download a model and link its files into `folder`. Raises SpecError if that fails or takes `deadline`
    seconds; what was fetched until then is kept and need not be fetched again."""
    snapshot = _download(name, deadline)
    for file in snapshot.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    check_folder(folder)


def _download(name: str, deadline: float) -> Path:
    # A process of its own: the hub's client bounds a socket read, but nothing in it bounds a whole download.
    command = [sys.executable, "-m", __name__, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired:
        reason = f"not finished after {deadline:.0f} s"
    else:
        if done.returncode == 0:
            return Path(done.stdout)
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise model_problem(
        f"{name} cannot be downloaded from Hugging Face ({reason})",
        "check the name and the network, or fetch the model elsewhere and give its folder",
    )


def _main() -> None:
    if sys.platform == "linux":  # do not outlive whoever asked
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from huggingface_hub import snapshot_download

    sys.stdout.write(snapshot_download(sys.argv[1], allow_patterns=list(_FILES)))


if __name__ == "__main__":
    _main()
