"""Where clusters come from: a kubeconfig file, Secrets of the hub, or a function."""

import asyncio
import base64
import inspect
import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from listwatch.cache.shared_informer import SharedInformer
from listwatch.client.config import Config
from listwatch.client.kubeconfig import load_config, parse_kubeconfig
from listwatch.clock import Clock
from listwatch.errors import ConfigError
from listwatch.objects import Object
from listwatch.printable import printable

if TYPE_CHECKING:
    from listwatch.client.client import Client

_logger = logging.getLogger(__name__)

#: Gets the hub's client, and yields all clusters by name, again after each change.
FindClusters: TypeAlias = Callable[["Client"], AsyncIterable[Mapping[str, Config]]]

#: The fields of a configuration that name files of this machine or run its commands, and their
#: names in a kubeconfig.
_REACHES_OUT: Final = {
    "exec": "exec",
    "oidc": "auth-provider",
    "token_file": "tokenFile",
    "client_certificate": "client-certificate",
    "client_key": "client-key",
    "certificate_authority": "certificate-authority",
}


def polled(
    function: Callable[[], Mapping[str, Config] | Awaitable[Mapping[str, Config]]],
    *,
    every: float = 30.0,
    clock: Clock | None = None,
) -> FindClusters:
    """Return a source of clusters that asks a function.

    Args:
        function: returns all clusters by name. It may be a coroutine function; a plain one must not
            block. If it raises, the clusters stay as they are, which is logged.
        every: seconds between two calls.
        clock: the time.
    """
    pause = (clock or Clock()).sleep

    async def find(_: "Client") -> AsyncIterator[Mapping[str, Config]]:
        while True:
            found = function()
            yield await found if inspect.isawaitable(found) else found
            await pause(every)

    return find


def in_kubeconfig(
    path: Path, *, contexts: str = "", every: float = 10.0, clock: Clock | None = None
) -> FindClusters:
    """Return a source of clusters that reads the contexts of a kubeconfig file.

    A cluster is named as its context, with a hyphen for each character that a name can't have.

    Args:
        path: the file; read again after each change.
        contexts: only contexts that this regular expression matches as a whole; empty for all.
        every: seconds between two looks at the file.
        clock: the time.
    """
    pause = (clock or Clock()).sleep
    chosen = re.compile(contexts or ".*")

    def read() -> Mapping[str, Config]:
        import yaml  # noqa: PLC0415 - loaded on first use

        try:
            entries = (yaml.safe_load(path.read_text("utf-8")) or {}).get("contexts") or []
            names = [str(entry["name"]) for entry in entries]
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"kubeconfig {path}: no contexts can be read: {error}") from None
        return {
            _cluster_name(name): load_config(path, context=name)
            for name in names
            if chosen.fullmatch(name)
        }

    async def find(_: "Client") -> AsyncIterator[Mapping[str, Config]]:
        seen: tuple[int, int] | None = None
        while True:
            stat = await asyncio.to_thread(path.stat)
            if seen != (stat.st_mtime_ns, stat.st_size):
                yield await asyncio.to_thread(read)
                seen = (stat.st_mtime_ns, stat.st_size)
            await pause(every)

    return find


def in_secrets(
    namespace: str,
    *,
    label_selector: str = "",
    key: str = "kubeconfig",
    trusted: bool = False,
    clock: Clock | None = None,
) -> FindClusters:
    """Return a source of clusters that watches Secrets of the hub, each with a kubeconfig.

    A cluster is named as its Secret. A Secret that can't be used is logged, and its cluster stays
    as it was.

    Args:
        namespace: of the Secrets.
        label_selector: only these.
        key: the key of the kubeconfig in the Secret's data.
        trusted: also accept kubeconfigs that name files of this machine or run commands: whoever
            may write such a Secret may then run commands here.
        clock: the time.
    """

    async def find(client: "Client") -> AsyncIterator[Mapping[str, Config]]:
        source = client.list_watch("secrets", namespace, label_selector=label_selector)
        good: dict[str, Config] = {}
        versions: dict[str, str] = {}
        async with SharedInformer(source, name="the clusters' secrets", clock=clock) as secrets:
            await secrets.wait_for_sync()
            listener = secrets.listen(name="clusters")
            while True:
                there = {obj.name: obj for obj in secrets.lister.list()}
                for name in good.keys() - there.keys():
                    del good[name]
                for name, obj in there.items():
                    if versions.get(name) == obj.resource_version:
                        continue
                    versions[name] = obj.resource_version
                    try:
                        # In a thread: a long one takes a while to parse.
                        good[name] = await asyncio.to_thread(config_of, obj, key, trusted=trusted)
                    except ConfigError as error:
                        _logger.warning("cluster %s: %s", name, printable(str(error)))
                yield dict(good)  # without any Secret, too: there may have been some before
                if not await listener.take():
                    return

    return find


def config_of(secret: Object, key: str, *, trusted: bool) -> Config:
    """Return the configuration in a Secret.

    Raises:
        ConfigError: there is none, it is invalid, or it reaches out and is not trusted. The message
            shows nothing of it but names.
    """
    try:
        content = base64.b64decode(secret["data"][key], validate=True)
    except (KeyError, TypeError):
        raise ConfigError(f"Secret {secret.key} has no {key!r} in its data") from None
    except ValueError:
        raise ConfigError(f"Secret {secret.key}: its {key!r} is not valid base64") from None
    try:
        config = parse_kubeconfig(content)
    except ConfigError as error:
        raise ConfigError(f"Secret {secret.key}: its {error}") from None
    # What was understood is checked, not the text, which another parser may read in another way.
    found = [name for field, name in _REACHES_OUT.items() if getattr(config, field)]
    if config.server.startswith("unix:"):
        found.append("a unix socket")
    if found and not trusted:
        raise ConfigError(
            f"Secret {secret.key}: its kubeconfig uses {', '.join(found)}, which can name files "
            "and run commands: put certificates and tokens into it, or pass trusted=True"
        )
    return config


def _cluster_name(context: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", context.lower()).strip("-.")
