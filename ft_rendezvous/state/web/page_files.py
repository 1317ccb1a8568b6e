"""The page's files, from the package: read once, and no other file than these."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Final

import msgspec

INDEX: Final = "index.html"
MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
}
_inline_script = re.compile(rb"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)


class PageFile(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str
    policy: str
    """Its content security policy."""


def read_page() -> dict[str, PageFile]:
    """All files of the page by name; of kinds that a page has."""
    found: dict[str, PageFile] = {}
    for entry in files("ft_rendezvous.state.web").joinpath("page").iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None and entry.is_file():
            body = entry.read_bytes()
            found[entry.name] = PageFile(body, media_type, policy_for(body))
    return found


def policy_for(html: bytes) -> str:
    """Nothing from another host, and of scripts inside the page only those that are in it now."""
    digests = (hashlib.sha256(script).digest() for script in _inline_script.findall(html))
    scripts = "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
