"""Credentials from a plugin: a command that prints them (KEP-541)."""

import asyncio
import base64
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from listwatch.client.config import Config, ExecConfig
from listwatch.client.credentials import Certificate, Credentials
from listwatch.clock import Clock
from listwatch.errors import ConfigError
from listwatch.objects.json_values import mend

_log = logging.getLogger(__name__)

#: Time limit of a plugin in seconds; one that may ask the user gets longer.
TIMEOUT: Final = 60.0
INTERACTIVE_TIMEOUT: Final = 600.0
#: Seconds before its expiry at which a credential is renewed, at most a quarter of its life.
_AHEAD: Final = 60.0
#: Seconds between tries to renew a credential that is still valid.
_HOLD_OFF: Final = 10.0
#: What Go writes for an unset time.
_NO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
#: Maximum bytes read of a plugin's output.
_MAX_OUTPUT: Final = 2**20
#: Minimum length of a plugin's argument or variable that may be a secret.
_MIN_SECRET: Final = 8
#: What is labelled as a secret, or looks like one: a JWT, or a long word with digits that is not a
#: path, host or file name.
_NAMED_SECRET: Final = re.compile(
    r"(?i)((?:token|secret|password|passwd|credential|key)s?[\"']?\s*[:=]\s*"
    r"|\b(?:bearer|basic) )\S+"
)
_LIKE_SECRET: Final = re.compile(
    r"\beyJ[\w-]+(?:\.[\w-]*)*"
    r"|(?<![\w./:-])(?=[A-Za-z+/_-]*\d)[A-Za-z0-9+/_-]{20,}={0,2}(?![\w./:-])"
)


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


class ExecAuthenticator:
    """Runs a credential plugin when its last credential is about to expire or was refused.

    Concurrent requests share one run. If the plugin fails, each request fails: none is sent without
    credentials. While the last credential is still valid, the failure is logged and the credential
    used. For one event loop.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        if config.exec is None:
            raise ValueError("the configuration has no exec plugin")
        self._config = config
        self._plugin: ExecConfig = config.exec
        self._clock = clock
        self._lock = asyncio.Lock()
        self._current: Credentials | None = None
        self._due: float | None = None  # when to renew, and when it expires, by the wall clock
        self._end: float | None = None
        self._not_before = 0.0

    async def credentials(self) -> Credentials:
        """Return the last credential, renewed if it is due.

        Raises:
            ConfigError: the plugin failed; the message says how, and shows the install hint if the
                command is missing.
        """
        async with self._lock:
            current = self._current
            if current is not None and not self._is_due():
                return current
            try:
                return await self._renew()
            except ConfigError as error:
                if current is None or self._has_ended():
                    raise
                _log.warning("%s; using the last credential, which is still valid", error)
                self._not_before = self._clock.now() + _HOLD_OFF
                return current

    async def renew(self, refused: Credentials) -> bool:
        """Run the plugin again, unless it has run since the refused request was sent."""
        async with self._lock:
            if self._current is not None and self._current != refused:
                return True
            await self._renew()
            return self._current != refused

    def _is_due(self) -> bool:
        return (
            self._due is not None
            and self._clock.time() >= self._due
            and (self._has_ended() or self._clock.now() >= self._not_before)
        )

    def _has_ended(self) -> bool:
        return self._end is not None and self._clock.time() >= self._end

    async def _renew(self) -> Credentials:
        output = await self._run()
        status = self._parse(output)
        now = self._clock.time()
        end = None
        if status.expiration_timestamp is not None:
            stamp = status.expiration_timestamp
            stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
            # Go's zero time means no expiry. A credential that has expired by this clock is used
            # for this request, because the server's clock decides, and renewed for the next, as
            # kubectl does.
            end = None if stamp == _NO_TIME else stamp.timestamp()
        certificate = None
        if status.client_certificate_data and status.client_key_data:
            certificate = Certificate(
                status.client_certificate_data.encode(), status.client_key_data.encode()
            )
        authorization = f"Bearer {status.token}" if status.token else ""
        self._end = end
        self._due = None if end is None else end - min(_AHEAD, max(0.0, end - now) / 4)
        self._current = Credentials(authorization, certificate)
        return self._current

    def _error(self, words: str) -> ConfigError:
        return ConfigError(f"the exec plugin {self._plugin.command!r} {words}")

    def _parse(self, output: bytes) -> _Status:
        try:
            credential = _read_credential(output)
        except (ValueError, RecursionError):
            # The output may contain a secret, so it is not shown.
            raise self._error("printed no ExecCredential") from None
        expected = ("ExecCredential", self._plugin.api_version)
        if (credential.kind, credential.api_version) != expected:
            got = f"{credential.kind or 'something'} of {credential.api_version or 'no version'}"
            raise self._error(f"printed {got}, not {expected[0]} of {expected[1]}")
        status = credential.status
        if status is None or not (status.token or status.client_certificate_data):
            raise self._error("returned neither a token nor a certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._error("returned a certificate or a key without the other")
        return status

    def _is_interactive(self) -> bool:
        mode = self._plugin.interactive_mode
        if mode == "Never":
            return False
        has_terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if mode == "Always" and not has_terminal:
            raise self._error("needs a terminal (interactiveMode Always), and there is none")
        return has_terminal

    async def _run(self) -> bytes:
        interactive = self._is_interactive()
        plugin = self._plugin
        environ = {
            **os.environ,
            **plugin.env,
            "KUBERNETES_EXEC_INFO": json.dumps(self._info(interactive=interactive)),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
                env=environ,
                # A separate session, so that its children end with it; a terminal needs ours.
                start_new_session=not interactive,
            )
        except (OSError, ValueError) as error:
            hint = " ".join(plugin.install_hint.split())
            reason = getattr(error, "strerror", None) or "it can't be run"
            raise self._error(f"does not start: {reason}{f'; {hint}' if hint else ''}") from None
        limit = INTERACTIVE_TIMEOUT if interactive else TIMEOUT
        try:
            async with self._clock.timeout(limit):
                async with asyncio.TaskGroup() as tasks:
                    stop = partial(_kill, process, has_group=not interactive)
                    reading = tasks.create_task(_read(process.stdout, stop))
                    complaining = tasks.create_task(_read(process.stderr, stop))
                code = await process.wait()
        except TimeoutError:
            raise self._error(f"has not ended within {limit:g} s") from None
        finally:
            await _end(process, has_group=not interactive)
        if max(len(reading.result()), len(complaining.result())) > _MAX_OUTPUT:
            raise self._error(f"prints more than {_MAX_OUTPUT} bytes")
        if code:
            last = complaining.result().decode("utf-8", "replace").strip().rpartition("\n")[2]
            words = self._without_secrets(last)[:300]
            raise self._error(f"failed with exit code {code}{f': {words}' if words else ''}")
        return reading.result()

    def _without_secrets(self, text: str) -> str:
        """Return a plugin's error output without values that it was given or may have received."""
        given = {
            *self._plugin.env.values(),
            *(arg.rpartition("=")[2] for arg in self._plugin.args),
            *self._plugin.args,
        }
        for value in sorted(given, key=len, reverse=True):
            # Short ones are words such as a region or a subcommand.
            if len(value) >= _MIN_SECRET:
                text = text.replace(value, "<hidden>")
        text = _NAMED_SECRET.sub(r"\1<hidden>", text)
        return _LIKE_SECRET.sub("<hidden>", text)

    def _info(self, *, interactive: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._plugin.provide_cluster_info:
            spec["cluster"] = self._cluster()
        return {
            "apiVersion": self._plugin.api_version,
            "kind": "ExecCredential",
            "spec": spec,
        }

    def _cluster(self) -> dict[str, Any]:
        config = self._config
        authority = config.certificate_authority_data
        if not authority and config.certificate_authority:
            try:
                with open(config.certificate_authority, "rb") as file:  # noqa: PTH123 - one read
                    authority = file.read()
            except OSError as error:
                raise ConfigError(
                    f"{config.certificate_authority} can't be read: {error.strerror}"
                ) from None
        cluster: dict[str, Any] = {
            "server": config.server,
            "tls-server-name": config.tls_server_name,
            "insecure-skip-tls-verify": config.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(authority).decode(),
            "proxy-url": config.proxy_url,
            "disable-compression": config.disable_compression,
        }
        given = {name: value for name, value in cluster.items() if value or name == "server"}
        return {**given, "config": self._plugin.config}  # any value, passed on as kubectl does


def _read_credential(output: bytes) -> _ExecCredential:
    """Parse JSON or YAML, as kubectl does.

    Raises:
        ValueError: it is neither.
        msgspec.ValidationError: it has values of other types.
    """
    try:
        return msgspec.json.decode(mend(output), type=_ExecCredential)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if output.lstrip().startswith(b"{"):  # kubectl's test for JSON
            raise
        from listwatch.client import go_yaml  # noqa: PLC0415 - loads PyYAML, rarely needed

        try:
            value = go_yaml.load(go_yaml.decode_text(output)[0])
        except go_yaml.YAMLError as error:
            raise ValueError(str(error)) from None
        return msgspec.convert(value, _ExecCredential)


async def _read(stream: asyncio.StreamReader | None, stop: Callable[[], None]) -> bytes:
    """Read a whole stream; if it is too long, call `stop` and read no further."""
    if stream is None:
        return b""
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(2**16):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_OUTPUT:
            stop()
            break
    return b"".join(pieces)


async def _end(process: asyncio.subprocess.Process, *, has_group: bool) -> None:
    """Kill the process and wait for it, even if cancelled.

    A process that has left its group may keep the output open for ever, and `wait` waits for the
    output's end. So the output is closed here.
    """
    _kill(process, has_group=has_group)
    process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001 - there is no public way
    await process.wait()


def _kill(process: asyncio.subprocess.Process, *, has_group: bool) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            if has_group and hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
