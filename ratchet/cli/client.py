"""The API, over HTTP: typed answers, and errors that say what to do."""

from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from ratchet.spec import deadlines
from ratchet.spec.faults import RatchetError, Unavailable
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.problems import InvalidSpec
from ratchet.spec.stack import StackState
from ratchet.spec.views import Problem, RebuildReport, RunList, RunView, StepList, StepView

Answer = TypeVar("Answer", bound=BaseModel)

PAGE = 100


class Refused(RatchetError):
    """The API understood and said no: an unknown run, an action on a run that has ended."""


class Api:
    """The stack's API. Its address is looked up for every call, so a restarted stack is found again."""

    def __init__(self, home: Home | None = None) -> None:
        self._home = home or Home()
        # trust_env: a proxy from the environment must not swallow calls to this host.
        self._http = httpx.Client(timeout=deadlines.HTTP, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def launch(self, spec: dict[str, Any], run_id: str | None = None) -> RunView:
        body = {"spec": spec} | ({"run_id": run_id} if run_id else {})
        return self._call("POST", "/v1/runs", RunView, json=body)

    def run(self, run: str) -> RunView:
        return self._call("GET", f"/v1/runs/{run}", RunView)

    def runs(self, limit: int, phase: str | None = None) -> RunList:
        """The newest `limit` runs, page by page."""
        found = RunList(runs=[])
        while True:
            params: dict[str, str | int] = {"limit": min(limit - len(found.runs), PAGE)}
            params |= {"phase": phase} if phase else {}
            params |= {"cursor": found.next_cursor} if found.next_cursor else {}
            page = self._call("GET", "/v1/runs", RunList, params=params)
            found = RunList(runs=[*found.runs, *page.runs], next_cursor=page.next_cursor)
            if not page.next_cursor or len(found.runs) >= limit:
                return found

    def steps(self, run: str, since: int = 0) -> list[StepView]:
        """Steps after `since`, in order."""
        return self._call("GET", f"/v1/runs/{run}/steps", StepList, params={"since": since}).steps

    def act(self, run: str, action: str, **body: Any) -> RunView:
        """`pause`, `resume`, `stop`, `checkpoint`; `extend`, `hyperparameters` and `fork` have a body."""
        return self._call("POST", f"/v1/runs/{run}/{action}", RunView, json=body or None)

    def rebuild(self, run: str, what: str) -> RebuildReport:
        return self._call("POST", f"/v1/runs/{run}/rebuild/{what}", RebuildReport)

    def _call(self, method: str, path: str, answer: type[Answer], **request: Any) -> Answer:
        try:
            url = StackState.load(self._home).api_url
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Unavailable(f"{error.filename}: {reason}: choose another {HOME_VARIABLE}") from None
        if url is None:
            raise Unavailable("this stack runs no API: `ratchet down`, then `ratchet up`")
        try:
            response = self._http.request(method, f"{url}{path}", **request)
        except httpx.TimeoutException:
            raise Unavailable(
                f"the API at {url} gave no answer for {deadlines.HTTP:.0f} s: see `ratchet logs api`"
            ) from None
        except httpx.TransportError as error:
            raise Unavailable(
                f"the API at {url} cannot be reached ({error}): "
                "see `ratchet status`, start it with `ratchet up`"
            ) from None
        if response.is_error:
            raise _error(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            raise Unavailable(f"what answers at {url} is not Ratchet's API: see `ratchet status`") from None


def _error(response: httpx.Response) -> RatchetError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return Unavailable(f"{response.url} answered {response.status_code}: see `ratchet logs api`")
    if response.status_code > 500:
        return Unavailable(problem.detail)
    if response.status_code == 500:
        return RatchetError(problem.detail)
    if problem.errors:
        return InvalidSpec(problem.errors)
    return Refused(problem.detail)
