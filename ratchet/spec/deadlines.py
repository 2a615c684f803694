"""Every timeout of Ratchet, in seconds, named in one place. A wait without a deadline is a bug (law 4)."""

from ratchet.spec.ids import OpKind

# --- operations: how long one may take, all attempts together, before it is asked for once more, and then
# given up (schedule_to_close; it counts the time that the stack is down)
OPERATION: dict[OpKind, float] = {
    OpKind.RESTORE: 1800.0,
    OpKind.ROLLOUT_BATCH: 3600.0,
    OpKind.TRAIN_STEP: 3600.0,
    OpKind.REFIT: 900.0,
    OpKind.SNAPSHOT: 900.0,
    OpKind.COMMIT_CHECKPOINT: 3600.0,
    OpKind.EVALUATE: 3600.0,
}

# --- session activities
SCHEDULE_TO_START = 30.0
"""Nobody polls the session's queue for this long: look after the session worker."""
HEARTBEAT = 15.0
"""No fresh poll answer for this long: the attempt has failed (safe, because retries join)."""
HEARTBEAT_THROTTLE = 3.0
"""The SDK otherwise holds heartbeats back for about 0.8 of the timeout."""
POLL_WAIT = 5.0
"""Length of one long poll of an operation; answered at once when it ends."""
HOST_CALL = 10.0
"""One request to the session host, beyond the wait it asked for."""
HOST_PING_EVERY = 2.0
HOST_SILENT = 10.0
"""A host that has not answered a ping for this long is killed and replaced."""
HOST_START = 90.0
"""From starting a host process to its conductor answering (imports, ray.init, actors)."""
RETRY_INTERVAL = 0.2
"""First pause before a lost attempt is retried; never grows, since a retry only joins."""
RETRY_LONGEST = 30.0
"""Longest pause before an operation that failed is started again; the pauses double up to it."""
MAX_STARTS = 5
"""An operation that failed with a restartable fault this often has failed for good."""

# --- control activities
RECORD = 5.0
RECORD_SCHEDULE_TO_CLOSE = 600.0
"""A store that stays away for two times this fails the run's record, and with it the run."""
STORE_BUSY = 3.0
"""For another process's lock on the store, for its server to be reached, and for one statement of it: less
than RECORD, so that the cause is told."""
STORE_SILENT = 1.0
"""A server that should have ended a statement by itself is given up after this; STORE_BUSY and this together
are less than RECORD."""
STORE_IDLE = 30.0
"""A transaction whose client has stopped between two statements is ended by the server after this."""
STORE_MIGRATE = 60.0
"""For another process to finish upgrading the store."""
STORE_MAINTENANCE = 900.0
"""For one statement of an upgrade, a check or a vacuum: it may have to read or write every row."""
GIT = 5.0
"""For git to name the revision a run is made with."""
CHOOSE_CHECKPOINT = 900.0
"""To find where a run can go back to: every byte of a checkpoint may have to be read."""
RETAIN = 300.0
"""To delete what a run's retention does not keep."""
DIAGNOSE = 10.0
ADMISSION_WAIT = 600.0
"""A queued run asks for its place again after this, should the store have lost it."""
ADMISSION_SWEEP = 5.0
"""A run that ended without giving its place back is noticed within this, if another one waits for it."""
RELEASE = 60.0
"""For a run that ends to give its place back; after that, it is taken."""
OPEN_SESSION = 180.0
CLOSE_SESSION = 60.0
PROBE = 20.0
CANCEL = 30.0

# --- workflow
REFIT_SILENT = 10.0
"""For the other side of a refit to send or take another byte."""
TURN = 300.0
"""For an engine to come to the device that it shares with another one."""
SETTLE_COMMIT = 10.0
"""For a checkpoint that is being written to end, before a recovery gives it up."""
RECOVERY_PAUSE = 1.0
"""Before the second recovery in a row, doubled before each further one."""
STORAGE_PAUSE = 40.0
"""Before an operation that met a full or silent disk is tried again, doubled each time: ten minutes until the
last of MAX_STARTS tries, in which to make room."""
FINAL_CHECKPOINT_PAUSE = 75.0
"""Between the MAX_STARTS tries to write a run's last checkpoint: five minutes in which to make room."""
WORKFLOW_TASK = 5.0
"""A dead control worker's task is given out again after this (the default of 10 s is too slow)."""
STICKY_QUEUE = 2.0
"""How long a workflow task waits for the worker that has it cached (the default is 10 s)."""

# --- supervisor
SERVER_READY = 30.0
HEAD_READY = 60.0
WORKER_READY = 60.0
API_READY = 30.0
STOP_GRACE = 10.0
"""From SIGTERM to SIGKILL when the stack is taken down."""
CHILD_SILENT = 10.0
"""A child that does not answer the supervisor for this long is killed and started again."""
EXISTING_TEMPORAL = 5.0
"""For a server that somebody else runs to answer."""
RAY_IDENTITY = 10.0
"""For a Ray cluster to say who it is (a Python that imports Ray included)."""
GCS_BACK = 10.0
"""For a re-executed GCS to listen; Ray's processes give it up after 15 s."""
PROCESSES_GONE = 15.0
"""For processes to end after SIGKILL."""
LEASE = 30.0
"""An active supervisor that has been silent for this long is replaced by one that stands by. It ends its
stack by itself before; an outage of the store that is shorter than two thirds of this is borne."""
STACK_READY = 180.0
"""From `ratchet up --detach` to everything being up."""
STOP_STACK = 60.0
"""For a supervisor to take everything down after SIGTERM; then it is killed with the rest."""

# --- API and command
LAUNCH = 30.0
"""From a launch request to the run's row in the store."""
HTTP = 40.0
UPDATE = 20.0
"""For a workflow update (pause, resume, stop) to be accepted."""
LIVE_STATUS = 2.0
"""For a running workflow to say what it does; then the store's record is shown alone."""
REBUILD = 30.0
"""For Temporal to give the whole history of a run, every execution of it."""
EVENTS_SILENT = 10.0
"""A stream of events that has nothing to say says so after this: proxies close silent connections."""
EVENTS_LONGEST = 3600.0
"""A stream of events ends by itself after this; its client comes back where it was."""
WATCH_AWAY = 300.0
"""`ratchet run watch` gives up (and says so) when nothing answered for this long; the run goes on."""

# --- telemetry and sinks
TRACES_FLUSH = 3.0
"""For the last spans of a process to be sent."""
SINK_CALL = 10.0
"""One request to a tracking server or a webhook."""
WEBHOOK = 3600.0
"""How long one incident is tried on a webhook that does not take it; then it counts as undelivered."""

# --- engines
RAY_CALL = 30.0
"""A call that only asks an actor something (position, receipts, ping)."""
DATA_PLANE_CALL = 5.0
"""One request to a part of a data plane, beyond what its bytes take: metadata, a ping, an empty read."""
DATA_PLANE_BYTES_PER_S = 50e6
"""The slowest that bytes may move before a data plane counts as silent."""
DATA_PLANE_START = 60.0
"""For a data plane's own processes to come up (imports)."""
DATA_PLANE_ROOM = 600.0
"""For a full data plane to have room again; then the producer's operation fails, and says who holds it."""
STREAM_SILENT = 1800.0
"""For a step that takes groups in as they are finished to get another one."""
DATA_PLANE_LEASE = 3700.0
"""A lease ends after this: a consumer that was to be done by OPERATION[TRAIN_STEP] is gone."""
DATA_PLANE_WRITE = 600.0
"""From room being given to a put until it is committed; then the room is given to others."""
OVER_GRACE = 30.0
"""For an operation of an incarnation that is over to end by itself; then its engine is ended."""
ENGINE_PING_EVERY = 2.0
ENGINE_SILENT = 10.0
"""An actor that has not answered pings for this long is killed and counts as lost."""
ACTOR_START = 120.0
MODEL_PREPARE = 600.0
"""For another process that builds or downloads the same base model."""
MODEL_DOWNLOAD = 1500.0
"""One download from Hugging Face; inside the time that `restore` may take."""
FAILPOINT_HOLD = 180.0
"""A held failpoint goes on by itself after this, so that a broken test cannot hang a run."""
