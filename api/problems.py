"""Errors as RFC 9457 problems (application/problem+json): a type, one line with the fix, the parts."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ratchet.spec.faults import Conflict, RatchetError, SpecError, Unavailable
from ratchet.spec.problems import InvalidSpec, SpecProblem, written
from ratchet.spec.views import Problem, ProblemItem

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
"""What is away is usually back within seconds: the supervisor restarts it."""


class NotFound(RatchetError):
    """What a path names is not there."""


class RunNotFound(NotFound):
    """No run has this id."""


class BadHost(RatchetError):
    """The request is meant for another host."""


class Unauthorized(RatchetError):
    """Nobody knows who asks."""


class Forbidden(RatchetError):
    """It is known who asks, and they may not."""


class TooLarge(RatchetError):
    """A request of too many bytes."""


class KeyReused(RatchetError):
    """An idempotency key that stands for another request."""


class TooManyLaunches(RatchetError):
    """A caller launches faster than is allowed."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BadRequest(RatchetError):
    """A request that cannot be meant as it is."""


class InvalidOverrides(InvalidSpec):
    """A spec that cannot be run because of what a fork changes in it."""


class InvalidValues(InvalidSpec):
    """Hyperparameters that cannot have these values."""


_KNOWN: tuple[tuple[type[RatchetError], HTTPStatus, str, str], ...] = (
    (RunNotFound, HTTPStatus.NOT_FOUND, "run-not-found", "There is no such run"),
    (NotFound, HTTPStatus.NOT_FOUND, "not-found", "There is no such thing"),
    (BadHost, HTTPStatus.BAD_REQUEST, "bad-host", "The request is for another host"),
    (Unauthorized, HTTPStatus.UNAUTHORIZED, "unauthorized", "A token is needed"),
    (Forbidden, HTTPStatus.FORBIDDEN, "forbidden", "This is not allowed"),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", "The request is too large"),
    (KeyReused, HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-key-reused", "The idempotency key is taken"),
    (TooManyLaunches, HTTPStatus.TOO_MANY_REQUESTS, "too-many-launches", "Launches come too fast"),
    (BadRequest, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", "The request is not valid"),
    (SpecError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-spec", "The run spec cannot be run"),
    (Conflict, HTTPStatus.CONFLICT, "conflict", "The run is not in a state for this"),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "Something the API needs does not answer"),
    (RatchetError, HTTPStatus.INTERNAL_SERVER_ERROR, "run-failed", "The run failed"),
)


def problem_example(status: int) -> dict[str, Any]:
    """One of the problems that a status stands for."""
    slug, title = {code: (slug, title) for _, code, slug, title in _KNOWN}[HTTPStatus(status)]
    problem = Problem(
        type=f"urn:ratchet:problem:{slug}",
        title=title,
        status=status,
        detail="what is wrong, and what to do about it",
        instance="/v1/runs/tiny-addition-3fa2c1",
    )
    return problem.model_dump(mode="json")


def install(app: FastAPI) -> None:
    """Answer every error as a problem."""

    @app.exception_handler(RatchetError)
    def _ratchet(request: Request, error: RatchetError) -> JSONResponse:
        return response(request, error)

    @app.exception_handler(RequestValidationError)
    def _request(request: Request, error: RequestValidationError) -> JSONResponse:
        items = [_item(_problem_of(details), details["loc"][1:]) for details in error.errors()]
        detail = "; ".join(item.detail for item in items)
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return _answer(request, status, "invalid-request", "The request is not valid", detail, items)

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        detail = f"{request.url.path}: {error.detail}"
        return _answer(request, status, "http", status.phrase, detail, headers=error.headers)

    @app.exception_handler(Exception)
    def _defect(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = f"a defect in the API ({type(error).__name__}): its log has the details, `ratchet logs api`"
        return _answer(request, HTTPStatus.INTERNAL_SERVER_ERROR, "defect", "The API failed", detail)


def response(request: Request, error: RatchetError) -> JSONResponse:
    """The answer that an error of ours is."""
    _, status, slug, title = next(known for known in _KNOWN if isinstance(error, known[0]))
    problems = error.problems if isinstance(error, InvalidSpec) else ()
    items = [_item(problem, _location(error, problem)) for problem in problems]
    match error:
        case Unauthorized():
            headers = {"WWW-Authenticate": "Bearer"}
        case TooManyLaunches():
            headers = {"Retry-After": str(error.retry_after)}
        case _:
            headers = None
    return _answer(request, status, slug, title, str(error), items, headers)


def _answer(
    request: Request,
    status: HTTPStatus,
    slug: str,
    title: str,
    detail: str,
    errors: Sequence[ProblemItem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        type=f"urn:ratchet:problem:{slug}",
        title=title,
        status=status,
        detail=detail,
        instance=request.url.path,
        errors=list(errors),
    )
    headers = dict(headers or {})
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse(problem.model_dump(mode="json"), status, headers=headers, media_type=MEDIA_TYPE)


def _location(error: RatchetError, problem: SpecProblem) -> Sequence[str]:
    match error:
        case InvalidOverrides():
            return ("overrides",)
        case InvalidValues():
            return ("values", problem.key)
        case _:
            return ("spec", *problem.key.split("."))


def _problem_of(details: dict[str, Any]) -> SpecProblem:
    """What is wrong with a request before its spec is even looked at."""
    key = ".".join(str(part) for part in details["loc"][1:]) or "body"
    if details["type"] in ("missing", "extra_forbidden", "json_invalid"):
        return SpecProblem(key=key, found=details["msg"])
    allowed = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return SpecProblem(key=key, found=written(details["input"]), allowed=allowed)


def _item(problem: SpecProblem, location: Sequence[str | int]) -> ProblemItem:
    return ProblemItem(**problem.model_dump(), pointer=_pointer(location), detail=str(problem))


def _pointer(parts: Sequence[str | int]) -> str:
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
