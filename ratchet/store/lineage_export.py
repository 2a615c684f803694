"""Lineage for other tools: OpenLineage events (openlineage.io, spec 2-0-2) and Graphviz DOT."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

from pydantic import JsonValue

import ratchet
from ratchet.store.lineage import Life, Line
from ratchet.store.lineage_graph import Grown, Trained, Weights, graph

Json = dict[str, JsonValue]

NAMESPACE = "ratchet"
PRODUCER = f"urn:ratchet:{ratchet.__version__}"
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs"
_FACETS = "https://openlineage.io/spec/facets"
_RUN_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ratchet")


def openlineage(line: Line) -> list[Json]:
    """RunEvents, each the COMPLETE of a job: restore, train (the steps between two weights that matter),
    checkpoint, evaluate. Datasets are weights, prompts and checkpoints. The same line gives the same events,
    run ids included, so that sending them again doubles nothing."""
    shape = graph(line)
    events = [_grown_event(grown) for grown in shape.grown]
    events += [_trained_event(trained) for trained in shape.trained]
    for saved in line.checkpoints:
        life = shape.life_of(saved.run, saved.incarnation)
        weights = Weights(saved.run, saved.incarnation, saved.step, saved.digest)
        kept = _dataset("file", saved.path, saved.state_digest)
        events.append(
            _event(life, "checkpoint", str(saved.step), saved.committed_at, [_weights(weights)], [kept])
        )
    for seen in line.evaluations:
        life = shape.life_of(seen.run, seen.incarnation)
        weights = Weights(seen.run, seen.incarnation, seen.step, seen.digest)
        name = f"{seen.run}/evaluations/{seen.incarnation}.{seen.step}"
        metrics: Json = {"accuracy": seen.accuracy, "numProblems": seen.num_problems}
        scores = _dataset(NAMESPACE, name, None, ratchet_evaluation=_facet("DatasetFacet", **metrics))
        events.append(
            _event(life, "evaluate", str(seen.step), seen.evaluated_at, [_weights(weights)], [scores])
        )
    return sorted(events, key=lambda event: str(event["eventTime"]))


def _grown_event(grown: Grown) -> Json:
    life = grown.life
    if life.from_checkpoint is not None:
        source = _dataset("file", life.from_checkpoint, None)
    else:
        source = _dataset(NAMESPACE, f"models/{life.model_digest}", life.model_digest)
    return _event(
        life, "restore", str(grown.weights.step), life.opened_at, [source], [_weights(grown.weights)]
    )


def _trained_event(trained: Trained) -> Json:
    start, end = trained.prompts
    life, steps = trained.life, trained.steps
    prompts = _dataset(NAMESPACE, f"environments/{life.inputs.get('environment', 'unknown')}", _prompts(life))
    dropped: list[JsonValue] = [position for step in steps for position in step.dropped]
    positions: Json = {"cursorStart": start, "cursorEnd": end, "dropped": dropped}
    prompts["inputFacets"] = {"ratchet_positions": _facet("InputDatasetFacet", **positions)}
    which = f"{trained.before.step}-{trained.after.step}"
    inputs = [_weights(trained.before), prompts]
    return _event(life, "train", which, steps[-1].finished_at, inputs, [_weights(trained.after)])


def _prompts(life: Life) -> str | None:
    digest = life.inputs.get("dataset_digest") or life.inputs.get("environment_digest")
    return str(digest) if digest else None


def _event(life: Life, job: str, which: str, at: float, inputs: list[Json], outputs: list[Json]) -> Json:
    provenance: Json = {
        "run": life.run,
        "incarnation": life.incarnation,
        "seed": life.seed,
        "configDigest": life.spec_digest,
        "code": dict(life.code),
        "inputs": dict(life.inputs),
    }
    parent: Json = {
        "run": {"runId": _run_id(life.run)},
        "job": {"namespace": NAMESPACE, "name": life.recipe},
    }
    return {
        "eventType": "COMPLETE",
        "eventTime": datetime.fromtimestamp(at, UTC).isoformat(),
        "producer": PRODUCER,
        "schemaURL": f"{_SPEC}/RunEvent",
        "run": {
            "runId": _run_id(f"{life.run}/{life.incarnation}/{job}/{which}"),
            "facets": {
                "parent": _standard("1-1-0/ParentRunFacet", **parent),
                "ratchet_provenance": _facet("RunFacet", **provenance),
            },
        },
        "job": {
            "namespace": NAMESPACE,
            "name": f"{life.recipe}.{job}",
            "facets": {
                "jobType": _standard(
                    "2-0-3/JobTypeJobFacet",
                    processingType="BATCH",
                    integration="RATCHET",
                    jobType=job.upper(),
                )
            },
        },
        "inputs": [*inputs],
        "outputs": [*outputs],
    }


def _run_id(name: str) -> str:
    return str(uuid.uuid5(_RUN_IDS, name))


def _weights(weights: Weights) -> Json:
    return _dataset(NAMESPACE, weights.name, weights.digest)


def _dataset(namespace: str, name: str, version: str | None, **facets: JsonValue) -> Json:
    if version is not None:
        facets["version"] = _standard("1-0-1/DatasetVersionDatasetFacet", datasetVersion=version)
    return {"namespace": namespace, "name": name, "facets": facets}


def _standard(schema: str, **content: JsonValue) -> Json:
    name = schema.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{schema}.json#/$defs/{name}", **content}


def _facet(base: str, **content: JsonValue) -> Json:
    """A facet of our own: what the specification promises of it is its base."""
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{base}", **content}


def dot(line: Line) -> str:
    """The same graph for `dot -Tsvg`: weights are ellipses, prompts and models boxes, checkpoints cylinders,
    evaluations notes; each life in a frame of its own."""
    return "\n".join(
        ["digraph lineage {", "  rankdir=LR; node [fontname=sans, fontsize=10];", *_body(line), "}", ""]
    )


def _body(line: Line) -> Iterator[str]:
    shape = graph(line)
    ends = [weights for trained in shape.trained for weights in (trained.before, trained.after)]
    ends += [grown.weights for grown in shape.grown]
    ends += [grown.parent for grown in shape.grown if grown.parent]
    kept = [
        (saved, Weights(saved.run, saved.incarnation, saved.step, saved.digest)) for saved in line.checkpoints
    ]
    scored = [
        (seen, Weights(seen.run, seen.incarnation, seen.step, seen.digest)) for seen in line.evaluations
    ]
    ends += [weights for _, weights in (*kept, *scored)]
    for number, life in enumerate(line.lives):
        yield f"  subgraph cluster_{number} {{"
        yield f"    label={_quoted(f'{life.run}, incarnation {life.incarnation}')};"
        mine = {one.step: one for one in ends if (one.run, one.incarnation) == (life.run, life.incarnation)}
        for step, weights in sorted(mine.items()):
            label = f"step {step}" + (f"\n{weights.digest[:8]}" if weights.digest else "")
            yield f"    {_quoted(weights.name)} [label={_quoted(label)}];"
        yield "  }"
    for trained in shape.trained:
        start, end = trained.prompts
        prompts = f"{trained.life.run}/prompts/{trained.life.incarnation}/{start}-{end}"
        steps = len(trained.steps)
        label = f"{steps} step{'s' if steps > 1 else ''}"
        yield f"  {_quoted(prompts)} [shape=box, label={_quoted(f'prompts {start} to {end - 1}')}];"
        yield f"  {_quoted(prompts)} -> {_quoted(trained.after.name)} [style=dashed];"
        yield f"  {_quoted(trained.before.name)} -> {_quoted(trained.after.name)} [label={_quoted(label)}];"
    saved_at = {(saved.run, saved.incarnation, saved.step): saved.path for saved, _ in kept}
    for grown in shape.grown:
        parent = grown.parent
        if parent is None:
            source = f"model {(grown.life.model_digest or 'unknown')[:8]}"
            yield f"  {_quoted(source)} [shape=box];"
        else:
            source = saved_at.get((parent.run, parent.incarnation, parent.step), parent.name)
        forked = parent is not None and parent.run != grown.life.run
        label = _quoted("fork" if forked else "restore")
        yield f"  {_quoted(source)} -> {_quoted(grown.weights.name)} [label={label}];"
    for saved, weights in kept:
        yield f"  {_quoted(saved.path)} [shape=cylinder, label={_quoted(f'checkpoint {saved.step}')}];"
        yield f"  {_quoted(weights.name)} -> {_quoted(saved.path)};"
    for seen, weights in scored:
        name = f"{seen.run}/evaluations/{seen.incarnation}.{seen.step}"
        label = "accuracy " + (f"{seen.accuracy:.3f}" if seen.accuracy is not None else "unknown")
        yield f"  {_quoted(name)} [shape=note, label={_quoted(label)}];"
        yield f"  {_quoted(weights.name)} -> {_quoted(name)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
