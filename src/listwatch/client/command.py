"""The command `listwatch config`: show the server and identity, and check the connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import click
import msgspec
import yaml

from listwatch.backoff import SERVER_START
from listwatch.client.client import Client
from listwatch.client.command_line import CommandError, exit_code
from listwatch.client.config import Config
from listwatch.client.connection_options import ConnectionOptions, Duration, connection_options
from listwatch.client.http import JSON
from listwatch.clock import Clock
from listwatch.errors import (
    ConfigError,
    DisconnectedError,
    FrameError,
    ListWatchError,
    NotFoundError,
    ServiceUnavailableError,
)
from listwatch.printable import printable

_REVIEW = b'{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}'


async def check(config: Config) -> dict[str, str]:
    """Return the server's version and the user it knows us as.

    Raises:
        The errors of `Client`.
    """
    async with Client.from_config(config) as client:
        version = _mapping((await client.http.request("GET", "/version")).body)
        checked = {"server version": str(version.get("gitVersion", "unknown"))}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        try:
            answer = await client.http.request("POST", path, body=_REVIEW, content_type=JSON)
        except NotFoundError:
            return checked  # servers before 1.28 can't tell
        user = _mapping(answer.body).get("status", {}).get("userInfo", {})
        checked["user"] = str(user.get("username", "unknown"))
        if groups := user.get("groups"):
            checked["groups"] = ", ".join(map(str, groups))
        return checked


def _mapping(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        raise FrameError("the response is not from an API server; check the server URL") from None


async def wait_for_server(
    load: Callable[[], Config], seconds: float, *, clock: Clock | None = None
) -> None:
    """Wait until the configuration loads and its server answers.

    Args:
        load: loads the configuration.
        seconds: time limit; the last error is raised when it expires.
        clock: measures the limit and the pause between attempts.

    Raises:
        ConfigError, DisconnectedError, ServiceUnavailableError, TimeoutError: the limit expired.
        ListWatchError: the server gave an answer that waiting does not change.
    """
    clock = clock if clock is not None else Clock()
    end = clock.now() + seconds
    while True:
        try:
            await check(load())
        except (ConfigError, DisconnectedError, ServiceUnavailableError, TimeoutError):
            if clock.now() >= end:
                raise
        else:
            return
        await clock.sleep(min(SERVER_START.delay(0), max(end - clock.now(), 0.0)))


def show(config: Config) -> str:
    """Return a configuration as YAML, secrets hidden."""
    shown = msgspec.to_builtins(config.shown(), enc_hook=str, str_keys=True)
    for name in ("exec", "oidc"):
        if name in shown:
            shown[name] = repr(getattr(config, name))  # the repr hides secrets
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=1000)


@click.command("config")
@connection_options
@click.option("-n", "--namespace", metavar="NAME", help="Namespace to use.")
@click.option(
    "--check/--no-check", "checks", default=True, help="Check the connection to the server."
)
@click.option(
    "--wait",
    type=Duration(),
    default=0.0,
    metavar="DURATION",
    help="Time to wait, such as 30s, for the kubeconfig and for the server to answer.",
)
def config_command(
    *, connection: ConnectionOptions, namespace: str | None, checks: bool, wait: float
) -> None:
    """Print the effective configuration with secrets hidden, and check the connection.

    The exit code is 3 if the configuration is missing or invalid, 4 if the server does not
    answer, 5 if it rejects the credentials, 6 if it forbids the request, 1 for other failures.
    """
    try:
        if wait:
            asyncio.run(wait_for_server(lambda: connection.config(namespace), wait))
        config = connection.config(namespace)
        click.echo(show(config), nl=False)
        for name, value in asyncio.run(check(config)).items() if checks else ():
            click.echo(f"{name}: {printable(value)}")
    except (ListWatchError, TimeoutError) as error:
        raise CommandError(error, exit_code(error)) from None
