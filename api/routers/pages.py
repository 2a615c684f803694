"""The dashboard's pages. They hold no data: whoever may not ask the API sees nothing in them either."""

from functools import cache

from fastapi import APIRouter, Response, status

from api.dashboard import Dashboard, charts_folder
from api.problems import NotFound

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Text cannot become markup, whoever wrote it: nothing here may even try.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_SAFE = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@cache
def dashboard() -> Dashboard:
    return Dashboard.load(charts_folder())


@router.get("/")
@router.get("/compare")
@router.get("/runs/{run}")
@router.get("/runs/{run}/lineage")
@router.get("/runs/{run}/steps/{step}")
@router.get("/runs/{run}/records/{key}")
def page() -> Response:
    return _document(status.HTTP_200_OK)


@router.get("/runs/{path:path}")
def no_page(path: str) -> Response:
    """The same document, which says that there is nothing here."""
    del path
    return _document(status.HTTP_404_NOT_FOUND)


@router.get("/favicon.ico")
def icon() -> Response:
    return asset(dashboard().digest, "logo.svg")


@router.get("/assets/{digest}/{name}")
def asset(digest: str, name: str) -> Response:
    found = dashboard().assets.get(name) if digest == dashboard().digest else None
    if found is None:
        raise NotFound("the dashboard has another version now: load the page again")
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(found.content, media_type=found.media_type, headers={**_SAFE, **kept})


def _document(code: int) -> Response:
    return Response(
        dashboard().document, code, media_type="text/html", headers={**_SAFE, "Cache-Control": "no-cache"}
    )
