"""A list in pages."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from listwatch.cache.list_watch import Decoder, ListOptions, ObjectList
from listwatch.errors import ExpiredError, FrameError

#: So many pages in a row may bring nothing new: a server may leave pages empty, but not for ever.
_MOST_IDLE_PAGES: Final = 10
#: So many pages of one list may have less than a tenth of what was asked for: each costs a
#: request, and a server could go on like this for ever.
_MOST_SPARSE_PAGES: Final = 100


async def pages(
    list_page: Callable[[ListOptions], Awaitable[ObjectList]],
    *,
    page_size: int,
    decoder: Decoder,
    resource_version: str = "",
    begin_anew: bool = True,
) -> AsyncGenerator[tuple[ObjectList, bool], None]:
    """Iterate over the pages of a list of everything, each with whether the list begins anew.

    When the pages expire before the last of them has come, the list is asked for once more, in one
    piece, which can't expire; what came before is to be forgotten then (client-go `tools/pager`).

    Args:
        list_page: asks for one page.
        page_size: items in a page; 0 asks for everything at once.
        decoder: as in `ListOptions`.
        resource_version: as in `ListOptions`, of the first page.
        begin_anew: whether to; else expired pages raise ExpiredError.

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
    """Tells pages that lead on from those that go in a circle, or hardly move.

    Args:
        page_size: items asked for in a page.
    """

    def __init__(self, page_size: int) -> None:
        self._few = page_size / 10
        self._sparse = 0
        self._tokens: set[str] = set()
        #: How each page begins and ends. In the server's order no other page does.
        self._edges: set[tuple[str, str]] = set()
        self._idle = 0

    def check(self, page: ObjectList) -> None:
        """Take the next page.

        Raises:
            FrameError: it leads nowhere.
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
