"""Iterates over a list in pages."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from listwatch.cache.list_watch import Decoder, ListOptions, ObjectList
from listwatch.errors import ExpiredError, FrameError

#: Maximum pages in a row without a new item: a server may send empty pages, but not for ever.
_MOST_IDLE_PAGES: Final = 10
#: Maximum pages of one list with under a tenth of the requested items: each costs a request, and a
#: server could send them for ever.
_MOST_SPARSE_PAGES: Final = 100


async def pages(
    list_page: Callable[[ListOptions], Awaitable[ObjectList]],
    *,
    page_size: int,
    decoder: Decoder,
    resource_version: str = "",
    begin_anew: bool = True,
) -> AsyncGenerator[tuple[ObjectList, bool], None]:
    """Iterate over the pages of a complete list, each with whether the list starts over.

    If the pages expire before the last one, the list is requested once more in one piece, which
    can't expire; discard the earlier pages then (client-go `tools/pager`).

    Args:
        list_page: requests one page.
        page_size: items per page; 0 requests everything at once.
        decoder: as in `ListOptions`.
        resource_version: as in `ListOptions`, of the first page.
        begin_anew: start over; otherwise expired pages raise ExpiredError.

    Raises:
        FrameError: the pages repeat themselves, or bring next to nothing again and again.
        Exception: whatever `list_page` raises.
    """
    options = ListOptions(limit=page_size, resource_version=resource_version, decoder=decoder)
    page = await list_page(options)
    yield page, True
    progress = _Progress(page_size)
    progress.check(page)
    while token := page.continue_token:
        try:
            options = ListOptions(limit=page_size, continue_token=token, decoder=decoder)
            page, anew = await list_page(options), False
        except ExpiredError:
            if not begin_anew:
                raise
            page, anew = await list_page(ListOptions(decoder=decoder)), True
        progress.check(page)
        yield page, anew


class _Progress:
    """Detects pages that go in a circle, or hardly advance.

    Args:
        page_size: items requested per page.
    """

    def __init__(self, page_size: int) -> None:
        self._few = page_size / 10
        self._sparse = 0
        self._tokens: set[str] = set()
        #: First and last item of each page. In the server's order these are unique.
        self._edges: set[tuple[str, str]] = set()
        self._idle = 0

    def check(self, page: ObjectList) -> None:
        """Check the next page.

        Raises:
            FrameError: the pages do not advance.
        """
        if (token := page.continue_token) in self._tokens:
            raise FrameError("the server returned the same continue token twice in one list")
        if token:
            self._tokens.add(token)
        self._sparse += len(page.items) + len(page.undecodable) < self._few
        if token and self._sparse >= _MOST_SPARSE_PAGES:
            raise FrameError(
                f"the server gave {self._sparse} pages of one list with hardly an item"
            )
        edges = (page.items[0].key, page.items[-1].key) if page.items else None
        if edges is None or edges in self._edges:
            self._idle += 1
            if token and self._idle >= _MOST_IDLE_PAGES:
                raise FrameError(
                    f"the server returned {self._idle} pages of one list without a new object"
                )
        else:
            self._edges.add(edges)
            self._idle = 0
