"""The log of a container, line by line."""

from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote

from listwatch.client.http import HTTP

#: Bytes after which a longer line is returned in pieces, to bound memory.
MAX_LINE: Final = 2**20


async def log_lines(
    http: HTTP,
    pod: str,
    namespace: str,
    *,
    container: str,
    follow: bool,
    previous: bool,
    since_seconds: int | None,
    tail_lines: int | None,
    timestamps: bool,
) -> AsyncGenerator[str, None]:
    """Yield the lines of a log; see `Client.logs`."""
    if not pod:
        raise ValueError("a pod's name must not be empty")
    query = [
        (name, value)
        for name, value in (
            ("container", container),
            ("follow", "true" if follow else ""),
            ("previous", "true" if previous else ""),
            ("sinceSeconds", "" if since_seconds is None else str(since_seconds)),
            ("tailLines", "" if tail_lines is None else str(tail_lines)),
            ("timestamps", "true" if timestamps else ""),
        )
        if value
    ]
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log"
    # A followed log has no end, like a watch; its media type is text.
    async with http.stream(path, query, accept="*/*", watch=follow) as body:
        rest = bytearray()
        while piece := await body.read():
            rest += piece
            if b"\n" in piece:
                *lines, end = bytes(rest).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "replace")
                rest = bytearray(end)
            elif len(rest) > MAX_LINE:
                decoder = getincrementaldecoder("utf-8")("replace")
                yield decoder.decode(rest)
                rest = bytearray(decoder.getstate()[0])
        if rest:
            yield rest.decode("utf-8", "replace")
