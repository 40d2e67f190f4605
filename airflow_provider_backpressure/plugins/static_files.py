"""The page and its parts, served from the package: nothing is fetched from anywhere else."""

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, HTTPException, status
from fastapi.responses import FileResponse

STATIC = Path(str(files("airflow_provider_backpressure.plugins"))) / "static"
KINDS = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
CHARTS = "plotly.min.js"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        # The charting library writes its styles into the page.
        "style-src 'self' 'unsafe-inline'",
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
    return _file(STATIC / "page.html", cached=False)


@router.get("/static/{name}")
def part(name: str) -> FileResponse:
    """Return a script, a style sheet or a picture."""
    if name == CHARTS:
        return _file(_charts(), cached=True)
    if name not in {file.name for file in STATIC.iterdir()}:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such file.")
    return _file(STATIC / name, cached=False)


def _charts() -> Path:
    """Return the charting library's script; the library itself, which takes a second to import, is not needed."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None, "a requirement of this package"
    return Path(spec.origin).parent / "package_data" / CHARTS


def _file(path: Path, *, cached: bool) -> FileResponse:
    # The page's own files are asked for each time and answered by their tag: after an upgrade no browser uses old ones.
    cache = "private, max-age=86400" if cached else "private, no-cache"
    return FileResponse(path, media_type=KINDS[path.suffix], headers={**HEADERS, "Cache-Control": cache})
