"""What is deployed, as far as one can look without an engine: valid, pinned, without root or secrets."""

import importlib.util
import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from jsonschema import Draft7Validator

from ratchet.cli.main import app
from ratchet.spec.home import Home
from tests.deploy.compose import ROOT, compose, services

KUBERNETES = ROOT / "deploy" / "kubernetes"
KUBERNETES_VERSION = "1.33"
OWN_IMAGES = {"ratchet:0.1.0", "ratchet-engine:0.1.0"}
SECRET = re.compile(r"(?i)(password|passwd|pwd|token|secret)")


def manifests() -> list[dict[str, Any]]:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(
        file.name for file in KUBERNETES.glob("*.yaml") if file.name != "kustomization.yaml"
    )
    return [found for name in listed for found in yaml.safe_load_all((KUBERNETES / name).read_text())]


def pod_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    spec = manifest.get("spec", {})
    return (spec.get("headGroupSpec") or spec).get("template", {}).get("spec")


# --- compose


def test_compose_keeps_to_the_specification() -> None:
    schemas = resources.files("check_jsonschema.builtin_schemas") / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    assert [fault.message for fault in Draft7Validator(schema).iter_errors(compose())] == []


def test_compose_itself_accepts_it() -> None:
    docker = shutil.which("docker")
    words = [docker or "docker", "compose", "-f", str(ROOT / "docker-compose.yml"), "config", "--quiet"]
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose plugin here; the schema is checked all the same")
    checked = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_images_are_pinned() -> None:
    for name, service in services().items():
        image = service["image"]
        assert image in OWN_IMAGES or re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", image), (name, image)


def test_what_is_ours_runs_what_is_there_without_root() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    base, *stages = dockerfile[dockerfile.index(" AS base") :].split("\nFROM ")
    assert "USER 1000:1000" in base
    assert [stage.splitlines()[0] for stage in stages] == ["base AS engine", "base AS service"]
    assert not any("USER" in stage for stage in stages)
    ours = {name: service for name, service in services().items() if service["image"] in OWN_IMAGES}
    assert set(ours) == {
        "migrate", "token", "api", "control-worker", "sinks", "sessions", "ray-head", "ray-worker",
    }  # fmt: skip
    for name, service in ours.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        words = service["command"]
        if words[0] == "python":
            assert importlib.util.find_spec(words[2]) is not None, name


def test_what_goes_on_says_whether_it_is_healthy() -> None:
    image_has_one = {"api"}
    once = {"temporal-schema", "migrate", "token"}
    other = {"temporal-ui"}  # its image has no shell and no client to ask with
    checked = {name for name, service in services().items() if "test" in service.get("healthcheck", {})}
    assert checked | image_has_one | once | other == set(services())


def test_secrets_are_files() -> None:
    assert all(set(secret) == {"file"} for secret in compose()["secrets"].values())
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert str(value).startswith("/run/secrets/") or value == "token", (name, variable)
        mounted = {
            word
            for word in re.findall(r"/run/secrets/(\w+)", json.dumps(service))
            if name != "temporal-schema"
        }
        assert mounted <= set(service.get("secrets", [])), name


def test_whatever_is_named_is_there() -> None:
    known = set(services())
    for name, service in services().items():
        assert set(service.get("depends_on", {})) <= known, name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose()["volumes"] or (ROOT / source).exists(), (name, volume)
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    ours, temporal = scraped
    assert temporal["static_configs"] == [{"targets": ["temporal:8000"]}]
    (found,) = [file for where in ours["file_sd_configs"] for file in where["files"]]
    assert found == str(Home(services()["api"]["environment"]["RATCHET_HOME"]).prometheus / "*.json")
    assert set(yaml.safe_load((ROOT / "deploy/temporal/dynamicconfig.yaml").read_text())) == {
        "limit.maxIDLength"
    }


@pytest.mark.parametrize("document", ["README.md", "docs/operations.md", "docs/clusters.md"])
def test_commands_that_are_told_exist(document: str) -> None:
    lines = re.findall(r"^ *(?:[A-Z_]+=\S+ )*ratchet (.+)$", (ROOT / document).read_text(), re.MULTILINE)
    told = [line.split(" #")[0].split(" | ")[0] for line in lines if "──" not in line]
    for words in told:
        command: Any = typer.main.get_command(app)
        for word in words.split():
            if word.startswith("-") or not hasattr(command, "commands"):
                break
            assert word in command.commands, f"{document}: ratchet {words}"
            command = command.commands[word]
    assert told


# --- Kubernetes


def test_manifests_keep_to_the_schemas_of_kubernetes() -> None:
    for manifest in manifests():
        if manifest["kind"] == "RayCluster":  # its schema is the operator's; the pod in it is Kubernetes' own
            assert manifest["apiVersion"] == "ray.io/v1"
            assert set(manifest["spec"]) == {"rayVersion", "headGroupSpec"}
            assert set(manifest["spec"]["headGroupSpec"]) == {"serviceType", "rayStartParams", "template"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "head"}, "spec": pod_of(manifest)}
            kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
        else:
            kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_pods_have_no_rights_and_know_secrets_by_name_only() -> None:
    pods = {manifest["metadata"]["name"]: pod for manifest in manifests() if (pod := pod_of(manifest))}
    assert len(pods) == 6
    for name, pod in pods.items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["automountServiceAccountToken"] is False, name
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["image"] in {"ratchet", "ratchet-engine"}, "its tag is the kustomization's"
        for variable in container.get("env", []):
            secret = SECRET.search(variable["name"]) and not variable["name"].endswith("_MODE")
            assert bool(secret) == ("valueFrom" in variable), (name, variable["name"])
    named = re.findall(r"secretName: ([\w-]+)|secretKeyRef: \{name: ([\w-]+)", _all_text())
    assert {"".join(found) for found in named} == {"ratchet-postgres", "ratchet-ray"}
    assert not [manifest for manifest in manifests() if manifest["kind"] == "Secret"]


def test_both_deployments_run_the_same_programs() -> None:
    def programs(commands: list[list[str]]) -> set[str]:
        return {command[2] for command in commands if command[0] == "python"}

    pods = [pod for manifest in manifests() if (pod := pod_of(manifest))]
    there = [pod["containers"][0].get("command", [""]) for pod in pods]
    here = [service["command"] for service in services().values() if service["image"] == "ratchet:0.1.0"]
    assert programs(there) == programs(here)


def test_ray_is_the_one_that_is_locked() -> None:
    (cluster,) = [manifest for manifest in manifests() if manifest["kind"] == "RayCluster"]
    assert f"ray=={cluster['spec']['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()


def _all_text() -> str:
    return "\n".join(file.read_text() for file in sorted(Path(KUBERNETES).glob("*.yaml")))
