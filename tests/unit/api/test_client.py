"""A client that is generated from the description alone: typed, and all it takes to use the API."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from api.app import create_app
from ratchet.spec.home import Home

pytest.importorskip("openapi_python_client", reason="pip install --no-deps openapi-python-client")

PACKAGE = "generated_client"
JSON_LIKE = ("application/json", "application/problem+json")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return create_app(Home(tmp_path_factory.mktemp("home"))).openapi()


@pytest.fixture(scope="module")
def client(described: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package that openapi-python-client makes of the description, and nothing else."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_text(json.dumps(described))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    words = ["generate", "--path", "openapi.json", "--config", "config.yaml", "--meta", "none"]
    made = subprocess.run(
        [Path(sys.executable).with_name("openapi-python-client"), *words, "--output-path", PACKAGE],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "WARNING" not in made.stdout.upper(), made.stdout
    sys.path.insert(0, str(folder))
    yield importlib.import_module(PACKAGE)
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def part(operation: dict[str, Any]) -> ModuleType:
    """The module of one operation."""
    return importlib.import_module(f"{PACKAGE}.api.{operation['tags'][0]}.{operation['operationId']}")


def test_every_body_has_an_example_that_its_schema_allows(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        bodies = {"request": operation.get("requestBody", {}), **operation["responses"]}
        for which, body in bodies.items():
            for kind, content in body.get("content", {}).items():
                where = f"{method} {path} {which}"
                assert "example" in content or "examples" in content, where
                if kind in JSON_LIKE and "example" in content:
                    schema = {**content["schema"], "components": described["components"]}
                    faults = [
                        fault.message
                        for fault in Draft202012Validator(schema).iter_errors(content["example"])
                    ]
                    assert faults == [], where


def test_whatever_can_be_looked_at_comes_back_typed(
    described: dict[str, Any], client: ModuleType, live: tuple[str, str]
) -> None:
    address, token = live
    looked = 0
    with client.AuthenticatedClient(base_url=address, token=token, raise_on_unexpected_status=True) as caller:
        for method, path, operation in operations(described):
            if method != "get" or not path.startswith("/v1/") or path.endswith(("/events", "/dot")):
                continue
            given: dict[str, Any] = {"run": "done"} if "{run}" in path else {}
            given |= {"key": 0} if "{key}" in path else {}
            answer = part(operation).sync_detailed(client=caller, **given)
            assert answer.status_code == 200, (path, answer.content)
            parsed, sent = answer.parsed, json.loads(answer.content)
            if isinstance(sent, dict):
                assert set(parsed.to_dict()) == set(sent), path
            else:
                assert len(parsed) == len(sent), path
            looked += 1
    assert looked >= 12


def test_a_run_is_launched_steered_and_refused_in_types(client: ModuleType, live: tuple[str, str]) -> None:
    address, token = live
    models = importlib.import_module(f"{PACKAGE}.models")
    launch = importlib.import_module(f"{PACKAGE}.api.runs.launch_run")
    stop = importlib.import_module(f"{PACKAGE}.api.actions.stop")
    create = importlib.import_module(f"{PACKAGE}.api.access.create_token")
    with client.AuthenticatedClient(base_url=address, token=token) as admin:
        spec = models.LaunchRequestSpec.from_dict({"name": "x", "generation": {"temprature": 1.0}})
        refused = launch.sync(client=admin, body=models.LaunchRequest(spec=spec))
        assert isinstance(refused, models.Problem)
        assert (refused.status, refused.type_) == (422, "urn:ratchet:problem:invalid-spec")
        assert "#/spec/generation/temprature" in [item.pointer for item in refused.errors]
        ended = stop.sync(client=admin, run="done")
        assert (ended.status, "has ended" in ended.detail) == (409, True)
        made = create.sync(client=admin, body=models.TokenRequest(name="ci", role=models.Role.VIEWER))
    with client.AuthenticatedClient(base_url=address, token=made.token) as viewer:
        forbidden = stop.sync(client=viewer, run="done")
        assert (forbidden.status, forbidden.type_) == (403, "urn:ratchet:problem:forbidden")
