"""A `Client` on top of another library's client object.

Our list, watch, discovery and verbs run on its session and authentication, with the bytes
unchanged.
"""

from importlib import import_module
from typing import Final

from listwatch.client.client import Client
from listwatch.clock import Clock

#: Finds the adapter, by the first part of the type's module and by the type's name.
_ADAPTERS: Final = {
    ("kubernetes.aio", "ApiClient"): "aiohttp_session",
    ("kubernetes_asyncio", "ApiClient"): "aiohttp_session",
    ("kubernetes", "ApiClient"): "threaded",
    ("lightkube", "Client"): "threaded",
    ("lightkube", "AsyncClient"): "httpx_client",
    ("kr8s", "Api"): "httpx_client",
}


def client_of(theirs: object, *, clock: Clock | None = None) -> Client:
    """Return a client that uses the session of another library's client object.

    Closing it leaves that session open. A blocking client is used on threads, one per response
    being read; for many watches use an asynchronous client.

    Args:
        theirs: a `kubernetes.client.ApiClient`, `kubernetes.aio.client.ApiClient`,
            `kubernetes_asyncio.client.ApiClient`, `lightkube.Client`, `lightkube.AsyncClient`, or
            the result of `await kr8s.asyncio.api()`. An asynchronous one belongs to the running
            event loop.
        clock: for every time-out.

    Raises:
        TypeError: it is none of these.
    """
    for kind in type(theirs).__mro__:
        for (module, name), adapter in _ADAPTERS.items():
            if kind.__name__ == name and f"{kind.__module__}.".startswith(f"{module}."):
                adapt = import_module(f"listwatch.client.adapters.{adapter}").adapt
                config, connections, authenticator = adapt(theirs, clock or Clock())
                return Client(
                    config, clock=clock, authenticator=authenticator, connections=connections
                )
    known = ", ".join(f"{module} {name}" for module, name in _ADAPTERS)
    raise TypeError(f"no adapter for a {type(theirs).__module__}.{type(theirs).__name__}: {known}")
