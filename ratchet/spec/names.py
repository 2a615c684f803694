"""Names of activities, updates, queries and search attributes: workflow code calls activities by name."""

# activities of the control queue
REGISTER_RUN = "register_run"
RECORD = "record"
CHOOSE_CHECKPOINT = "choose_checkpoint"
RETAIN = "retain"
DIAGNOSE = "diagnose"
ADMIT = "admit"
RELEASE = "release"

# activities of the cluster queue
OPEN_SESSION = "open_session"
PROBE_SESSION = "probe_session"
RESTART_WORKER = "restart_worker"
CLOSE_SESSION = "close_session"

# activities of a session queue: one per OpKind, named like it, and
CANCEL_OPERATION = "cancel_operation"

# the workflow
RUN_WORKFLOW = "RunWorkflow"
UPDATE_PAUSE = "pause"
UPDATE_RESUME = "resume"
UPDATE_STOP = "stop"
UPDATE_CHECKPOINT = "checkpoint_now"
UPDATE_EXTEND = "extend"
UPDATE_HYPERPARAMETERS = "set_hyperparameters"
QUERY_STATUS = "status"

# topics of events that something is decided by
TOPIC_INCIDENT = "incident"
TOPIC_EXTENDED = "extended"
TOPIC_HYPERPARAMETERS = "hyperparameters"

# topics of events that people ask for
TOPIC_QUEUED = "queued"
TOPIC_ADMITTED = "admitted"

NAMESPACE = "ratchet"
"""Temporal namespace."""

ATTRIBUTE_STATE = "RatchetState"
ATTRIBUTE_STEP = "RatchetStep"
ATTRIBUTE_INCARNATION = "RatchetIncarnation"
ATTRIBUTE_RECIPE = "RatchetRecipe"
