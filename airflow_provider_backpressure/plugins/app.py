"""The application under ``/backpressure``: the API below ``/api``, the page beside it."""

from typing import Any, Protocol

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.middleware.gzip import GZipMiddleware

from airflow_provider_backpressure import __version__
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.plugins import static_files as pages
from airflow_provider_backpressure.plugins.long_poll import Live
from airflow_provider_backpressure.plugins.routes import control as acts
from airflow_provider_backpressure.plugins.routes import read as routes

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
    app.include_router(acts.router)
    app.include_router(pages.router)

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
