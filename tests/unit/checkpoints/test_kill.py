"""Law 11: a checkpoint is whole or absent, whenever its writer is killed."""

import json
import subprocess
import sys
from pathlib import Path

KILLED = """
import json, os, resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_round_trip as case
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import ManifestMissing, read_manifest, verify_files
from ratchet.artifacts.store import LocalArtifactStore

root = Path(sys.argv[1])
store = LocalArtifactStore(root)
state, template = case.trained_state(), case.template()
case.write(case.folder_of(root, 10), case.trained_state(seed=1), 10)

DISK = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree"}


def die_at(point):
    # Audit events come before what they announce; a synced file has been written before.
    left = [point]

    def strike(label):
        left[0] -= 1
        if left[0] == 0:
            (root / f"label-{point}").write_text(label)
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event, args):
        if left[0] > 0 and event in DISK and str(root) in str(args[0] if args else ""):
            strike(event)

    def fsync(descriptor, real=os.fsync):
        real(descriptor)
        if left[0] > 0:
            strike("fsync")

    sys.addaudithook(audit)
    os.fsync = fsync


def die_past(num_bytes):
    # The kernel's own SIGXFSZ ends the process inside a write, with the file cut at num_bytes.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def child(prepare, argument):
    pid = os.fork()
    if pid == 0:
        try:
            prepare(argument)
            case.write(case.folder_of(root), state)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def verdict():
    folder = case.folder_of(root)
    newest = list_manifests(store, "r")[0][0]
    try:
        manifest = read_manifest(folder, "r")
    except ManifestMissing:
        assert newest.step == 10, newest
        return "absent"
    assert verify_files(folder, manifest) == [] and newest.step == 20
    return "whole"


deaths = []
for prepare, arguments in ((die_past, (0, 600, 2000, 4000, 5000, 9000)), (die_at, range(1, 400))):
    for argument in arguments:
        code = child(prepare, argument)
        if code == 0:
            break
        label = root / f"label-{argument}" if prepare is die_at else None
        deaths.append([prepare.__name__, argument, code, label and label.read_text(), verdict()])
        # The next writer finds what the killed one left.
        case.write(case.folder_of(root), state)
        case.load_checkpoint(case.folder_of(root), template, "r")
        store.remove_tree("runs/r/checkpoints/1-20")
print(json.dumps(deaths))
"""


def test_killed_anywhere_a_checkpoint_is_whole_or_absent_and_can_be_written_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    deaths = json.loads(done.stdout)
    assert all(code in (-9, -25) for _, _, code, _, _ in deaths), deaths
    events = {label for kind, _, _, label, _ in deaths if kind == "die_at"}
    assert {"open", "os.mkdir", "os.rename", "fsync"} <= events, events
    inside_writes = [death for death in deaths if death[0] == "die_past"]
    assert len(inside_writes) >= 3
    verdicts = [death[-1] for death in deaths]
    assert "absent" in verdicts
    assert "whole" in verdicts
    # The rename of the manifest is the one commit: nothing is whole before it.
    at = [death for death in deaths if death[0] == "die_at"]
    first_whole = next(i for i, death in enumerate(at) if death[-1] == "whole")
    assert all(death[-1] == "whole" for death in at[first_whole:])
    assert at[first_whole - 1][3] == "os.rename"
