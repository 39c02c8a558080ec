"""A list in pages."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from listwatch.cache.list_watch import Decode, ListOptions, ObjectList
from listwatch.errors import ExpiredError


async def pages(
    list_page: Callable[[ListOptions], Awaitable[ObjectList]], *, page_size: int, decode: Decode
) -> AsyncGenerator[tuple[ObjectList, bool], None]:
    """Iterate over the pages of a list of everything, each with whether the list begins anew.

    When the pages expire before the last of them has come, the list is asked for once more, in one
    piece, which can't expire; what came before is to be forgotten then (client-go `tools/pager`).

    Args:
        list_page: asks for one page.
        page_size: items in a page; 0 asks for everything at once.
        decode: as in `ListOptions`.

    Raises:
        Exception: whatever `list_page` raises.
    """
    page = await list_page(ListOptions(limit=page_size, decode=decode))
    yield page, True
    while token := page.continue_token:
        try:
            options = ListOptions(limit=page_size, continue_token=token, decode=decode)
            page, anew = await list_page(options), False
        except ExpiredError:
            page, anew = await list_page(ListOptions(decode=decode)), True
        yield page, anew
