"""docs/api.md: every example is sent as it stands there, and no operation is without one."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

import ratchet

DOCUMENT = Path(ratchet.__file__).parents[1] / "docs" / "api.md"
AWAY = 503
"""Temporal is away here, so whatever asks it says so; a request that is wrong is refused before that."""


@dataclass(frozen=True)
class Call:
    method: str
    address: str
    """Path and query."""
    headers: dict[str, str]
    body: Any


def calls(instead: dict[str, str]) -> list[Call]:
    """The document's `api …` lines, a line ending inside quotes going on in the next."""
    code = "\n".join(re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))
    found = re.findall(r"^api ((?:'[^']*'|[^'\n])*)", code, re.MULTILINE)
    return [_call(shlex.split(line, comments=True), instead) for line in found]


def _call(words: list[str], instead: dict[str, str]) -> Call:
    method, address, headers, body = "GET", "", {}, None
    rest = iter(words[: words.index(">")] if ">" in words else words)
    for word in rest:
        match word:
            case "-X":
                method = next(rest)
            case "--json":
                method, body = "POST", json.loads(next(rest))
            case "--header":
                name, _, value = next(rest).partition(": ")
                headers[name] = value.replace("$(openssl rand -hex 16)", "0d0fb8f63c3b4f0e")
            case "--no-buffer":
                pass
            case _:
                assert address == "", word
                address = word
    for name, value in instead.items():
        address = address.replace(name, value)
    assert "$" not in address, address
    return Call(method, address, headers, body)


def test_every_example_works_and_every_operation_has_one(live: tuple[str, str]) -> None:
    address, token = live
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=30.0) as client:
        described = client.get("/openapi.json").json()["paths"]
        mine = client.get("/v1/tokens").json()["tokens"][0]["id"]
        asked = set()
        last = {"$RATCHET_URL": "", "$RUN": "done", "$TOKEN_ID": mine}
        for call in sorted(calls(last), key=lambda call: call.method == "DELETE"):  # revokes what asks
            path = template(call, described)
            answer = client.request(call.method, call.address, headers=call.headers, json=call.body)
            documented = described[path][call.method.lower()]["responses"]
            assert str(answer.status_code) in documented, (call, answer.text)
            assert answer.status_code in (200, 201, 202, 409, AWAY), (call, answer.text)
            asked.add((call.method, path))
    every = {(method.upper(), path) for path, methods in described.items() for method in methods}
    assert {(method, path) for method, path in every if path.startswith("/v1/")} == asked


def template(call: Call, described: dict[str, Any]) -> str:
    path = urlsplit(call.address).path
    matching = [known for known in described if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path)]
    literal = [known for known in matching if call.method.lower() in described[known]]
    assert literal, f"no operation {call.method} {path}"
    return min(literal, key=lambda known: known.count("{"))


def test_every_type_of_problem_is_in_the_table() -> None:
    from api.problems import _KNOWN

    table = DOCUMENT.read_text().split("## Problems")[1]
    assert {slug for _, _, slug, _ in _KNOWN} | {"http", "defect", "invalid-request"} <= set(
        re.findall(r"`([\w-]+)`", table)
    )
