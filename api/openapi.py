"""What the API says of itself: every operation with every answer it may give, errors as problems."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from api.examples import complete
from api.problems import MEDIA_TYPE, problem_example

DESCRIPTION = """
Errors are problems (RFC 9457): `type`, `title`, `status`, one line of `detail` that says what to do, and the
parts in `errors`. Lists are paged: pass `next_cursor` back as `cursor`. What takes its time is answered with
202 and where to look (`Location`). Launches take an `Idempotency-Key`, so that they may be repeated safely.
Wherever the API listens beyond loopback, every request needs a bearer token.
"""

_EVERYWHERE = {
    400: "The request is for another host, or cannot be read.",
    401: "A token is needed, or the one that was sent is not known.",
    403: "The token's role does not allow this.",
    413: "The request is too large.",
    422: "The request is not valid.",
    500: "A defect, or the run itself failed.",
    503: "Something the API needs does not answer: come back after `Retry-After` seconds.",
}
"""Problems that any operation may answer with."""

_ELSEWHERE = {
    404: "There is no such thing.",
    409: "The run is not in a state for this.",
    429: "Launches come too fast: come back after `Retry-After` seconds.",
}

_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Problems that a route may answer with, beside those that any may."""
    return {code: _problem(code) for code in (*codes, *_EVERYWHERE)}


def _problem(code: int) -> dict[str, Any]:
    title = (_EVERYWHERE | _ELSEWHERE)[code]
    answer: dict[str, Any] = {
        "description": title,
        "content": {
            MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": problem_example(code)}
        },
    }
    return answer | ({"headers": _RETRY_AFTER} if code in (429, 503) else {})


def install(app: FastAPI) -> None:
    """Describe the app."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            from ratchet.spec.views import EventView, Problem

            schema = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=DESCRIPTION,
                routes=app.routes,
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (Problem, EventView):  # no answer's own model
                described = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= described.pop("$defs", {})
                schemas[model.__name__] = described
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            complete(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = describe


def name_of(route: APIRoute) -> str:
    """Operation ids are the handlers' names: clients that are generated read like written ones."""
    return route.name
