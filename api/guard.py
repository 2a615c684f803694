"""At the door: which host is meant, how big a request is, who asks; and what may change something is audited.

It stands before routing, so that a route that somebody adds tomorrow is guarded too.
"""

import logging
import time
from urllib.parse import urlsplit

from fastapi import HTTPException, status
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems
from api.access import NOBODY_IN_PARTICULAR, Caller
from api.problems import BadHost, Forbidden, TooLarge, Unauthorized
from api.services import Services
from api.settings import LOOPBACK_NAMES, ApiSettings
from ratchet.spec.faults import RatchetError, Unavailable

logger = logging.getLogger(__name__)

GUARDED = ("/v1/", "/metrics")
LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        try:
            self._check_host(request)
            self._check_size(request)
            if scope["path"].startswith(GUARDED):
                scope.setdefault("state", {})["caller"] = caller = await self._caller(request)
                if request.method not in LOOKING:
                    self._check_origin(request, caller)
                    entry = await self._begin(request, caller)
                    return await self._audited(entry, scope, self._limited(receive), send)
        except RatchetError as error:
            return await problems.response(request, error)(scope, receive, send)
        await self._app(scope, self._limited(receive), send)

    # --- who and what

    def _check_host(self, request: Request) -> None:
        """A web page that rebinds its own name to loopback gets no answer. Tokens are proof by themselves."""
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if not self._settings.wide and name.lower() not in LOOPBACK_NAMES:
            raise BadHost(f"host {name!r} is not served here: ask for 127.0.0.1")

    def _check_size(self, request: Request) -> None:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_body:
            raise TooLarge(self._too_large)

    @property
    def _too_large(self) -> str:
        return f"the request has more than {self._settings.max_body} bytes: send a smaller one"

    async def _caller(self, request: Request) -> Caller:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            if self._settings.wide:
                raise Unauthorized("a token is needed: send `Authorization: Bearer TOKEN`")
            return NOBODY_IN_PARTICULAR
        services: Services = request.app.state.services
        token = None
        if scheme.lower() == "bearer":
            token = await run_in_threadpool(services.tokens.holder, text.strip())
        if token is None:
            logger.warning("refused a token from %s: %s", _origin(request), request.url.path)
            raise Unauthorized("this token is not known here, or was revoked: ask an admin for another")
        return Caller(f"{token.id} ({token.name})", token.role)

    def _check_origin(self, request: Request, caller: Caller) -> None:
        """A page of another site cannot use that its reader sits on loopback."""
        origin = request.headers.get("origin")
        if caller is NOBODY_IN_PARTICULAR and origin is not None:
            if urlsplit(origin).netloc != request.headers.get("host"):
                raise Forbidden(f"pages of {origin} may not change anything here: use a token")

    # --- what is written down

    async def _begin(self, request: Request, caller: Caller) -> int:
        services: Services = request.app.state.services
        async with services.writing:
            return await run_in_threadpool(
                services.audit.begin,
                at=time.time(),
                who=caller.who,
                role=caller.role,
                origin=_origin(request),
                method=request.method,
                path=request.url.path.replace("\0", "?"),
            )

    async def _audited(self, entry: int, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        answered = False

        async def end(code: int) -> None:
            nonlocal answered
            answered = True
            try:
                async with services.writing:
                    await run_in_threadpool(services.audit.end, entry, code)
            except Unavailable as error:
                logger.warning("audit entry %d: answered %d, which cannot be written: %s", entry, code, error)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                await end(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if not answered:
                await end(status.HTTP_500_INTERNAL_SERVER_ERROR)
            raise

    def _limited(self, receive: Receive) -> Receive:
        """For requests that do not say how long they are."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._settings.max_body:
                raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, self._too_large)
            return message

        return counted


def _origin(request: Request) -> str:
    return request.client.host if request.client else "?"
