import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.http.request_info import parse_list_options
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry
from listwatch.clock import FakeClock


async def pages(
    reader: Reader, resource: APIResource, namespace: str, between: Any, **query: str
) -> tuple[list[list[Entry]], list[dict[str, Any]]]:
    """Read a list page by page, and call `between` after each page."""
    found: list[list[Entry]] = []
    heads: list[dict[str, Any]] = []
    token = ""
    while not found or token:
        asked = {name: [value] for name, value in query.items()}
        if token:
            asked["continue"] = [token]
        entries, metadata = await reader.select(
            resource, namespace, parse_list_options(asked, watch=False)
        )
        found.append(entries)
        heads.append(metadata)
        token = str(metadata.get("continue", ""))
        between()
    return found, heads


_SERVER = EmbeddedAPIServer(controllers=False, clock=FakeClock())


@given(
    objects=st.sets(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 20)), max_size=25),
    changes=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 20)), max_size=25),
    namespace=st.sampled_from(["", "a", "c"]),
    limit=st.integers(1, 7),
    selector=st.sampled_from(["", "odd=1", "odd=9"]),
)
def test_pages_are_the_list_at_the_revision_of_the_first_one_cut_into_pieces(
    objects: set[tuple[str, int]],
    changes: list[tuple[str, int]],
    namespace: str,
    limit: int,
    selector: str,
) -> None:
    """Changes between pages don't show; pages say how many items follow if that is known."""
    resource = _SERVER.table.get("", "v1", "configmaps")
    assert resource is not None
    store, bucket = _SERVER.store, _SERVER.registry.bucket(resource)

    def put(where: str, number: int) -> None:
        labels = {"odd": str(number % 2)}
        metadata = {"name": f"m{number}", "namespace": where, "uid": "u", "labels": labels}
        entry = _SERVER.registry.entry(resource, {"metadata": metadata}, store.revision + 1)
        store.put(bucket, entry)

    for entry in bucket.current():
        store.delete(bucket, entry)
    for where, number in objects:
        put(where, number)
    expected = [
        entry
        for entry in bucket.current()
        if namespace in {"", entry.namespace}
        if not selector or entry.labels["odd"] == selector[-1]
    ]
    left = list(changes)

    def change() -> None:
        for where, number in left[:3]:
            there = bucket.entries.get(f"{where}/m{number}")
            if there is None or number % 3:
                put(where, number)
            else:
                store.delete(bucket, there)
        del left[:3]

    query = {"limit": str(limit)} | ({"labelSelector": selector} if selector else {})
    revision = str(store.revision)
    found, heads = asyncio.run(pages(_SERVER._reader, resource, namespace, change, **query))
    assert found == [expected[at : at + limit] for at in range(0, max(1, len(expected)), limit)]
    assert {head["resourceVersion"] for head in heads} == {revision}
    counts = [head.get("remainingItemCount", 0) for head in heads]
    rest = [max(0, len(expected) - at * limit) for at in range(1, len(heads) + 1)]
    assert counts == ([0] * len(heads) if selector else rest)
