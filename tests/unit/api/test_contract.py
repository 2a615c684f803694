"""The API keeps to its own description, whatever it is asked: no 500, no other shape, no other status."""

import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from api.app import create_app
from api.settings import ApiSettings
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.access import Role
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunPhase
from ratchet.store import Tokens

EXAMPLES = 12
"""Of every operation, good and bad ones each."""
EXPECTED = {200, 201, 202, 400, 401, 404, 405, 406, 409, 413, 422, 503}
"""503, since Temporal is away."""
EXCLUDED = [not_a_server_error, positive_data_acceptance]
"""Those in EXPECTED are fine; and what a spec has to hold is more than its schema says."""
RUNS = {"done": RunPhase.COMPLETED, "on": RunPhase.RUNNING, "broken": RunPhase.FAILED}


@pytest.fixture
def live(home: Home, on_record: Any) -> Iterator[tuple[str, str]]:
    """Address and token of an API with runs in it; Temporal is away."""
    home.root.mkdir(exist_ok=True)
    stack = StackState(supervisor_pid=1, temporal_address="127.0.0.1:1", namespace="ratchet")
    home.state_file.write_text(stack.model_dump_json())
    for run, phase in RUNS.items():
        on_record.run(run, phase, steps=3)
        on_record.incident(run, 1)
    version = WeightVersion(incarnation=1, step=0, digest="d" * 32)
    sample = Sample(
        tokens=np.array([55, 10], np.int32),
        logprobs=np.array([-0.5, -0.25], np.float32),
        mask=np.ones(2, np.uint8),
        finish_reason="stop",
        text="7\n",
        reward=1.0,
        rewards={"exact": 1.0},
        correct=True,
        seed=7,
    )
    writer = JournalWriter(home.run_folder("done") / "journal", "generator-0")
    writer.adopt(1)
    prompt = np.array([1, 2], np.int32)
    writer.append([PromptGroup(key, 1, f"p{key}", prompt, version, version, (sample,)) for key in range(6)])
    writer.close()
    _, token = Tokens(on_record.store).create("schemathesis", Role.ADMIN, by="test", at=0.0)
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(home, ApiSettings(wide=True, allowed_roots=()))
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", token
    server.should_exit = True
    thread.join(10)


def asked_as_it_is(case: Any) -> Any:
    """Runs that there are, most of the time, and streams that end."""
    if "run" in (case.path_parameters or {}) and hash(str(case.query)) % 4:
        case.path_parameters["run"] = sorted(RUNS)[hash(str(case.body)) % len(RUNS)]
    if case.path.endswith("/events"):
        case.query = {**(case.query or {}), "seconds": 0}
    return case


@pytest.mark.slow
def test_no_answer_is_outside_the_description(live: tuple[str, str]) -> None:
    address, token = live
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    asked: dict[str, set[int]] = defaultdict(set)
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def conforms(case: Any) -> None:
            case = asked_as_it_is(case)
            headers = {"Authorization": f"Bearer {token}"}
            answer = case.call_and_validate(headers=headers, timeout=30, excluded_checks=EXCLUDED)
            assert answer.status_code in EXPECTED, answer.text
            asked[case.operation.label].add(answer.status_code)

        conforms()
    # It was not all refused at the door.
    assert {label for label, codes in asked.items() if 200 <= min(codes) < 300} >= {
        "GET /v1/runs",
        "GET /v1/runs/{run}",
        "GET /v1/runs/{run}/rollouts",
        "POST /v1/tokens",
    }
