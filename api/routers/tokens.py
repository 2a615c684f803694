"""Tokens, and the audit of what was done with them."""

import time
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, status
from starlette.concurrency import run_in_threadpool

from api.access import CallerDep, admin
from api.cursors import CursorQuery, cursor_after, number_of
from api.openapi import problems
from api.presenting import as_time
from api.problems import NotFound
from api.services import ServicesDep
from ratchet.spec.access import AuditList, AuditView, NewToken, TokenList, TokenRequest, TokenView
from ratchet.store import TokenRecord

router = APIRouter(prefix="/v1", tags=["access"], dependencies=[admin], responses=problems())


@router.post("/tokens", status_code=status.HTTP_201_CREATED, summary="Give somebody a token")
async def create_token(request: TokenRequest, services: ServicesDep, caller: CallerDep) -> NewToken:
    """Its text is told this once: only a digest of it is kept."""
    async with services.writing:
        record, text = await run_in_threadpool(
            services.tokens.create, request.name, request.role, by=caller.who, at=time.time()
        )
    return NewToken(**_view(record).model_dump(), token=text)


@router.get("/tokens", summary="Tokens, revoked ones too, the oldest first")
async def list_tokens(services: ServicesDep) -> TokenList:
    records = await run_in_threadpool(services.tokens.list)
    return TokenList(tokens=[_view(record) for record in records])


@router.delete("/tokens/{token}", summary="Revoke a token, from this moment on", responses=problems(404))
async def revoke_token(
    token: Annotated[
        str, Path(pattern="^[0-9a-f]{8}$", description="The token's id.", examples=["3fa2c19b"])
    ],
    services: ServicesDep,
) -> TokenView:
    async with services.writing:
        record = await run_in_threadpool(services.tokens.revoke, token, at=time.time())
    if record is None:
        raise NotFound(f"there is no token {token}: see `ratchet token ls`")
    return _view(record)


@router.get("/audit", summary="Calls that may have changed something, the newest first")
async def list_audit(
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: CursorQuery = None,
) -> AuditList:
    before = number_of(cursor)
    records = await run_in_threadpool(services.audit.newest, limit=limit + 1, before=before)
    page = records[:limit]
    return AuditList(
        calls=[
            AuditView(**record.model_dump(exclude={"at"}), at=datetime.fromtimestamp(record.at, UTC))
            for record in page
        ],
        next_cursor=cursor_after(page[-1].id) if len(records) > limit else None,
    )


def _view(record: TokenRecord) -> TokenView:
    return TokenView(
        id=record.id,
        name=record.name,
        role=record.role,
        created_at=as_time(record.created_at),
        created_by=record.created_by,
        revoked_at=as_time(record.revoked_at) if record.revoked_at is not None else None,
    )
