"""The API, over HTTP: typed answers, and errors that say what to do."""

import uuid
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from ratchet.cli.connection import Connection, current_connection
from ratchet.spec import deadlines
from ratchet.spec.access import NewToken, TokenList, TokenView
from ratchet.spec.faults import RatchetError, Unavailable
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.problems import InvalidSpec
from ratchet.spec.stack import StackState
from ratchet.spec.views import Problem, RebuildReport, RunList, RunView, StepList, StepView

Answer = TypeVar("Answer", bound=BaseModel)

PAGE = 100


class Refused(RatchetError):
    """The API understood and said no: an unknown run, an action on a run that has ended."""


class AnswerLost(Unavailable):
    """The API may have done what was asked; nobody knows."""


class Api:
    """A stack's API. That of this machine is looked up for every call, so that one that was restarted is
    found again."""

    def __init__(self, home: Home | None = None, connection: Connection | None = None) -> None:
        """`connection`: else what command line and environment say. Raises InvalidSpec."""
        self._home = home or Home()
        self._connection = connection or current_connection()
        token = self._connection.token
        self._http = httpx.Client(
            timeout=deadlines.HTTP,
            # A proxy from the environment must not swallow calls to this host.
            trust_env=self._connection.url is not None,
            headers={"Authorization": f"Bearer {token}"} if token else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def launch(self, spec: dict[str, Any], run_id: str | None = None) -> RunView:
        """Start a run: one, also where the answer is lost on its way and this has to ask again."""
        body = {"spec": spec} | ({"run_id": run_id} if run_id else {})
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        try:
            return self._call("POST", "/v1/runs", RunView, json=body, headers=headers)
        except AnswerLost:
            return self._call("POST", "/v1/runs", RunView, json=body, headers=headers)

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
        found: list[StepView] = []
        params: dict[str, str | int] = {"since": since}
        while True:
            page = self._call("GET", f"/v1/runs/{run}/steps", StepList, params=params)
            found += page.steps
            if page.next_cursor is None:
                return found
            params["cursor"] = page.next_cursor

    def act(self, run: str, action: str, **body: Any) -> RunView:
        """`pause`, `resume`, `stop`, `checkpoint`; `extend`, `hyperparameters` and `fork` have a body."""
        return self._call("POST", f"/v1/runs/{run}/{action}", RunView, json=body or None)

    def rebuild(self, run: str, what: str) -> RebuildReport:
        return self._call("POST", f"/v1/runs/{run}/rebuild/{what}", RebuildReport)

    def create_token(self, name: str, role: str) -> NewToken:
        return self._call("POST", "/v1/tokens", NewToken, json={"name": name, "role": role})

    def tokens(self) -> TokenList:
        return self._call("GET", "/v1/tokens", TokenList)

    def revoke_token(self, token: str) -> TokenView:
        return self._call("DELETE", f"/v1/tokens/{token}", TokenView)

    def _url(self) -> str:
        if self._connection.url is not None:
            return self._connection.url
        try:
            state = StackState.load(self._home)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Unavailable(f"{error.filename}: {reason}: choose another {HOME_VARIABLE}") from None
        if state.standing_by_for is not None:
            raise Unavailable(f"this stack stands by for {state.standing_by_for}: ask that one's API (--url)")
        if state.api_url is None:
            raise Unavailable("this stack runs no API: `ratchet down`, then `ratchet up`")
        return state.api_url

    def _call(self, method: str, path: str, answer: type[Answer], **request: Any) -> Answer:
        url = self._url()
        local = self._connection.url is None
        try:
            response = self._http.request(method, f"{url}{path}", **request)
        except httpx.TimeoutException:
            where = "see `ratchet logs api`" if local else "try again in a while"
            raise AnswerLost(f"the API at {url} gave no answer for {deadlines.HTTP:.0f} s: {where}") from None
        except httpx.TransportError as error:
            fix = "see `ratchet status`, start it with `ratchet up`" if local else "check the address"
            kind = Unavailable if isinstance(error, httpx.ConnectError) else AnswerLost
            raise kind(f"the API at {url} cannot be reached ({error}): {fix}") from None
        if response.is_error:
            raise _error(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            fix = "see `ratchet status`" if local else "check the address"
            raise Unavailable(f"what answers at {url} is not Ratchet's API: {fix}") from None


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
