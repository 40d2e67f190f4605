"""The application under ``/backpressure``: the API below ``/api``, the page beside it."""

from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.middleware.gzip import GZipMiddleware

from airflow_provider_backpressure import __version__
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.plugins import routes
from airflow_provider_backpressure.plugins.long_poll import Live

STATIC = Path(str(files("airflow_provider_backpressure.plugins"))) / "static"
KINDS = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}

router = APIRouter(include_in_schema=False)


@router.get("/")
def page() -> FileResponse:
    """Return the page."""
    return _file(STATIC / "page.html")


@router.get("/static/{name}")
def part(name: str) -> FileResponse:
    """Return a script, a style sheet or a picture."""
    if name not in {file.name for file in STATIC.iterdir()}:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such file.")
    return _file(STATIC / name)


def _file(path: Path) -> FileResponse:
    # Asked for each time and answered by its tag: after an upgrade no browser uses an old one.
    return FileResponse(path, media_type=KINDS[path.suffix], headers={**HEADERS, "Cache-Control": "private, no-cache"})


COMPRESSED_FROM = 2_000


class OpenLedger(Protocol):
    """Yields the ledger, and handles its errors."""

    def __call__(self) -> tuple[Ledger, Push | None]:
        """Return it, and this process's end of its channel."""
        ...

    def record_error(self, error: BackpressureError) -> None:
        """Take note of an error."""
        ...


def make_app(ledger: OpenLedger) -> FastAPI:
    """Return the application. Airflow does not protect what plugins mount, so every route asks for the person here.

    The framework's own pages for the API's description would not ask, so there are none; the description is a route of
    the API.
    """
    app = FastAPI(
        title="Backpressure",
        version=__version__,
        description="Hydrations: their state, and manual control of their gates.",
        dependencies=[Depends(get_user)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.ledger, app.state.live = ledger, Live(ledger)
    app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM)
    app.include_router(routes.router)
    app.include_router(routes.control_router)
    app.include_router(router)

    @app.get("/api/openapi.json", include_in_schema=False)
    def description(request: Request) -> dict[str, Any]:
        """Return the API's description."""
        return app.openapi()

    @app.exception_handler(RequestValidationError)
    def nonsense(request: Request, error: RequestValidationError) -> JSONResponse:
        """Answer with what is wrong where, and without what was sent: not all of that can be said again as JSON."""
        told = [{name: one[name] for name in ("type", "loc", "msg")} for one in error.errors()]
        return JSONResponse({"detail": told}, status_code=status.HTTP_422_UNPROCESSABLE_CONTENT)

    @app.exception_handler(BackpressureError)
    def unwell(request: Request, error: BackpressureError) -> JSONResponse:
        """Answer with the error's sentence."""
        ledger.record_error(error)
        return JSONResponse({"detail": str(error)}, status_code=status.HTTP_503_SERVICE_UNAVAILABLE)

    return app
