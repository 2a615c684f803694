"""Lineage as other tools read it."""

import re
import uuid
from datetime import datetime
from urllib.parse import urlparse

import pytest

from ratchet.store import Lineage
from ratchet.store.lineage_export import dot, openlineage
from ratchet.store.lineage_graph import graph


def names(datasets):
    return [dataset["name"] for dataset in datasets]


def test_stretches_end_where_weights_matter(family):
    stretches = graph(family.up("b", 2, 8)).trained
    assert [(one.life.run, one.before.step, one.after.step, one.prompts) for one in stretches] == [
        ("b", 7, 8, (28, 32)),
        ("b", 6, 7, (24, 28)),
        ("a", 4, 6, (16, 24)),
        ("a", 0, 2, (0, 8)),
        ("a", 2, 4, (8, 16)),
    ]
    assert [one.after.digest for one in stretches] == ["2-8", "1-7", "2-6", "1-2", "1-4"]


@pytest.mark.parametrize("question", [("up", "b", 2, 8), ("down", "a", 1, 4), ("down_from_prompt", "a", 18)])
def test_events_have_what_openlineage_requires(family, question):
    direction, *about = question
    events = openlineage(getattr(family, direction)(*about))
    assert events
    assert len({event["run"]["runId"] for event in events}) == len(events)
    for event in events:
        assert event["eventType"] == "COMPLETE"
        assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
        assert event["schemaURL"].startswith("https://openlineage.io/spec/2-")
        assert urlparse(event["producer"]).scheme
        uuid.UUID(event["run"]["runId"])
        assert event["job"]["namespace"]
        assert event["job"]["name"]
        datasets = event["inputs"] + event["outputs"]
        assert all(dataset["namespace"] and dataset["name"] for dataset in datasets)
        holders = [event["run"], event["job"], *datasets]
        facets = [facet for holder in holders for facet in holder["facets"].values()]
        facets += [facet for dataset in datasets for facet in dataset.get("inputFacets", {}).values()]
        assert all(urlparse(facet["_schemaURL"]).scheme == "https" and facet["_producer"] for facet in facets)


def test_events_join_at_their_datasets_from_the_base_model_to_the_last_checkpoint(family):
    events = openlineage(family.up("b", 2, 8))
    made = {name for event in events for name in names(event["outputs"])}
    used = {name for event in events for name in names(event["inputs"])}
    assert used - made == {"models/base", "environments/arithmetic", "environments/unknown"}
    # Backwards from the checkpoint, through whatever made each data set.
    reached, open_ = set(), {"/artifacts/runs/b/checkpoints/2-8"}
    while open_:
        reached |= open_
        open_ = {
            name
            for event in events
            if set(names(event["outputs"])) & reached
            for name in names(event["inputs"])
        } - reached
    assert {"models/base", "environments/arithmetic", "/artifacts/runs/a/checkpoints/2-6"} <= reached


def test_events_say_what_a_run_was_made_with(family):
    train = next(
        event for event in openlineage(family.up("a", 1, 4)) if event["job"]["name"] == "tiny-addition.train"
    )
    made_with = train["run"]["facets"]["ratchet_provenance"]
    assert (made_with["seed"], made_with["code"]) == (7, {"torch": "2"})
    assert made_with["inputs"]["environment_digest"] == "e"
    assert re.fullmatch("[0-9a-f]{64}", made_with["configDigest"])
    prompts = train["inputs"][1]["inputFacets"]["ratchet_positions"]
    assert (prompts["cursorStart"], prompts["cursorEnd"], prompts["dropped"]) == (0, 8, [])


def test_the_same_line_gives_the_same_events(family):
    assert openlineage(family.up("b", 2, 8)) == openlineage(family.up("b", 2, 8))


def test_dot_draws_every_edge_between_nodes_that_it_names(family):
    drawn = dot(family.up("b", 2, 8))
    edges = re.findall(r'^  "([^"]+)" -> "([^"]+)"', drawn, re.MULTILINE)
    nodes = set(re.findall(r'^ +"([^"]+)" \[', drawn, re.MULTILINE))
    assert {end for edge in edges for end in edge} <= nodes
    assert ("/artifacts/runs/a/checkpoints/2-6", "b/weights/1.6") in edges
    assert ("model base", "a/weights/1.0") in edges
    assert drawn.count("{") == drawn.count("}")


def test_dot_quotes_what_a_path_may_hold(store, told, run):
    odd = told.saved('r"\\', 1, 1)
    store.record(told.record(told.restore(0), told.step(1), odd))
    assert r"/artifacts/runs/r\"\\/checkpoints/1-1" in dot(Lineage(store).up(run, 1, 1))
