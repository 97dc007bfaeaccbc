"""Fetches a file, going on where an earlier try was cut."""

import os
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path

from transformer_jax.console import is_watched, progress_bar
from transformer_jax.data.text import scan
from transformer_jax.errors import UserError

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60


def download(address: str, path: Path, digest: str) -> None:
    """Puts the file at `address` at `path`, once the SHA-256 of what it unpacks to is `digest`.

    What has come so far lies at `<path>.part`. Raises UserError where it cannot be fetched, or is
    another file.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(address, part)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UserError(f"{address}: cannot be fetched ({reason}); put it at {path}") from None
    try:
        found = scan(part).digest
    except UserError:
        found = ""
    if found != digest:
        part.unlink(missing_ok=True)
        raise UserError(f"{address}: not the file that was expected; put the right one at {path}")
    os.replace(part, path)


def _append(address: str, part: Path) -> None:
    """Fetches what a file lacks."""
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={size}-"} if size else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if size and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all is there
        raise
    with response, open(part, "ab") as file:
        if response.status != HTTPStatus.PARTIAL_CONTENT:  # it comes from its beginning
            size = file.truncate(0)
        total = size + int(response.headers.get("Content-Length") or 0)
        options = {"unit": "B", "unit_scale": True, "disable": not is_watched()}
        with progress_bar(desc=part.name, initial=size, total=total or None, **options) as bar:
            while chunk := response.read(_CHUNK_BYTES):
                bar.update(file.write(chunk))
        if file.tell() < total:
            raise OSError("the connection was cut; the next try goes on from there")
