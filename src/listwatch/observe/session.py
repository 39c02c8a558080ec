"""From options to a running observer on a real server, and from its end to an exit code."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from listwatch.client import command_line
from listwatch.client.client import Client
from listwatch.client.connection_options import ConnectionOptions
from listwatch.clock import Clock
from listwatch.errors import ForbiddenError, NotFoundError
from listwatch.objects import ObjectDecoder, decode_object
from listwatch.observe.execute import Executor, StartError, is_shortage
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.names import KnownNames
from listwatch.observe.observer import Companion, Observer, Source, namespaced
from listwatch.observe.options import (
    CommandNotExecutableError,
    CommandNotFoundError,
    ObserveOptions,
    UsageError,
)
from listwatch.observe.output import OutputStream
from listwatch.observe.polling import PollingListWatch
from listwatch.observe.printing import Printer
from listwatch.observe.reaction import Reaction
from listwatch.observe.state import StateError, StateFile
from listwatch.observe.templates.template import TemplateSyntaxError
from listwatch.printable import printable
from listwatch.runtime.reaper import Reaper
from listwatch.signal_handlers import ENDING, handling

if TYPE_CHECKING:
    from listwatch.cache.list_watch import Decoder, ListerWatcher
    from listwatch.client.discovery import Resource

# Between lists that `--once` never makes: it ends after the first.
_ONCE_SECONDS = 60.0


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    kinds: tuple[tuple[int, tuple[type[BaseException], ...]], ...] = (
        (2, (UsageError, TemplateSyntaxError)),
        (8, (StateError,)),
        (125, (StartError,)),
        (126, (CommandNotExecutableError,)),
        (127, (CommandNotFoundError,)),
    )
    if is_shortage(error):
        return 125
    own = next((code for code, types in kinds if isinstance(error, types)), None)
    return command_line.exit_code(error) if own is None else own


async def observe(options: ObserveOptions, printer: Printer, connection: ConnectionOptions) -> None:
    """Observe until a signal, or until a limit in the options is reached.

    A signal during start-up, while the server is still being queried, ends it at once.

    Args:
        options: what to do.
        printer: prints changes without a command.
        connection: the server and identity.

    Raises:
        ListWatchError: the reason for an early end; `exit_code` has a number for each type.
        TimeoutError: the server did not respond.
        BrokenPipeError: nobody reads the output.
    """
    stop = _Stop()
    try:
        async with AsyncExitStack() as stack:
            # nohup, or a shell's background job, ignores some.
            heard = [each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN]
            stack.enter_context(handling(heard, lambda _: stop()))
            await _observe(options, printer, connection, stop)
    except asyncio.CancelledError:
        if not stop.taken_back():
            raise


class _Stop:
    """Handles a signal: cancels the task that created this, or calls `by` once it is set."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = 0
        self.by: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.by is not None:
            self.by()
        elif self._task is not None:
            self._cancelled += 1
            self._task.cancel()

    def taken_back(self) -> bool:
        """Undo this object's cancellations; return whether there was no other cancellation."""
        if self._task is None or self._cancelled == 0:
            return False
        for _ in range(self._cancelled):
            self._task.uncancel()
        return self._task.cancelling() == 0


async def _observe(
    options: ObserveOptions,
    printer: Printer,
    connection: ConnectionOptions,
    stop: _Stop,
) -> None:
    clock = Clock()
    out, err = OutputStream(1), OutputStream(2)
    config = connection.config()
    namespace = "" if options.all_namespaces else options.namespace or config.namespace
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.from_config(config, clock=clock))
        sources = [
            await find_source(client, word, options, namespace, clock) for word in options.resources
        ]
        metrics = ObserveMetrics()

        async def warn(words: str) -> None:
            await err.write(f"warning: {printable(words)}\n")

        executor = Executor(clock, timeout=options.timeout, warn=warn)
        names = None
        if options.names_command:
            names = KnownNames(
                options,
                namespace=namespace,
                executor=executor,
                metrics=metrics,
                err=err,
                clock=clock,
            )
        elif options.delete_command and options.state is None:
            await err.write(
                "warning: without --state or --names, deletions that happen while observe is not"
                " running are missed\n"
            )
        page = None
        if options.ui:
            from listwatch.observe.page import Page  # noqa: PLC0415 - loads a web server

            page = Page(_title(options, namespace), printer, clock)
        reaction = Reaction(
            options,
            namespaced=namespaced(sources),
            out=out,
            err=err,
            metrics=metrics,
            printer=printer,
            executor=executor,
            clock=clock,
            spectator=page,
        )
        state = None
        if options.state is not None:
            state = StateFile(options.state, await _binding(client, options, namespace, sources))
            stack.callback(state.close)
            if state.warning:
                await warn(state.warning)
        decoder: Decoder = decode_object
        if options.managed_fields:
            decoder = ObjectDecoder(keep_managed_fields=True)
        # As a container's first process it inherits what commands leave behind.
        reaper = Reaper(ours=executor.children, clock=clock)
        beside: list[Companion] = [lambda _: reaper.run()]
        # With both on a terminal, the lines of the changes show the progress.
        if os.isatty(2) and not os.isatty(1):
            from listwatch.observe import progress  # noqa: PLC0415 - loads rich

            decoder = counted = progress.CountingDecoder(decoder)
            beside.append(partial(progress.show_progress, decoded=counted, clock=clock))
        observer = Observer(
            options,
            sources,
            reaction=reaction,
            known_names=names,
            err=err,
            clock=clock,
            decoder=decoder,
            state=state,
            beside=beside,
        )
        metrics.watch(observer.dispatcher.statistics)
        stop.by = observer.stop
        if options.listen_address:
            from listwatch.observe.server import serve  # noqa: PLC0415 - loads a web server

            url = await stack.enter_async_context(
                serve(options.listen_address, metrics, ready=lambda: observer.synced, page=page)
            )
            await err.write(f"{'page, ' if page else ''}metrics and health on {url}\n")
        try:
            await observer.run()
        finally:
            if options.print_metrics_on_exit:
                await out.write(metrics.text())


def _title(options: ObserveOptions, namespace: str) -> str:
    place = f" in {namespace}" if namespace else ""
    return f"{', '.join(options.resources)}{place}"


async def _binding(
    client: Client, options: ObserveOptions, namespace: str, sources: Sequence[Source]
) -> dict[str, str]:
    """Return what a state file belongs to.

    Raises:
        StateError: the cluster has no identity.
    """
    try:
        cluster = await client.get("namespaces", "kube-system")
    except (ForbiddenError, NotFoundError) as error:
        raise StateError(
            f"--state needs to read the namespace kube-system, whose uid names the cluster: {error}"
        ) from error
    return {
        "cluster": cluster.uid,
        "resource": ",".join(sorted(source.full_name for source in sources)),
        "namespace": namespace,
        "selector": options.selector,
        "field selector": options.field_selector,
        "names": ",".join(sorted(options.names)),
    }


async def find_source(
    client: Client, word: str, options: ObserveOptions, namespace: str, clock: Clock
) -> Source:
    """Look up a resource and return its source.

    Raises:
        UnknownResourceError: the server has no resource of that name.
        UsageError: it can't be listed, or not be watched and polling was not asked for.
    """
    resource = await client.discovery.find(word)
    polled = _is_polled(word, resource, options)
    field_selector = options.field_selector
    if len(options.names) == 1:
        name = f"metadata.name={options.names[0]}"
        field_selector = f"{field_selector},{name}" if field_selector else name
    reads_objects = bool(
        options.template
        or options.object_env_var
        or options.stdin
        or options.state
        or options.ui
        or options.until
        or options.for_conditions
        or options.only_paths
        or options.exec_batch
        or not options.command
    )
    list_watch = client.list_watch(
        resource,
        (namespace or None) if resource.namespaced else None,
        label_selector=options.selector,
        field_selector=field_selector,
        metadata_only=not reads_objects,
    )

    async def exists(key: str) -> bool:
        where, _, name = key.rpartition("/")
        try:
            await client.get(resource, name, where or None)
        except NotFoundError:
            return False
        return True

    source: ListerWatcher = list_watch
    if polled:
        source = PollingListWatch(list_watch, options.poll or _ONCE_SECONDS, clock)
    return Source(word, source, resource.namespaced, exists, full_name=resource.full_name)


def _is_polled(word: str, resource: "Resource", options: ObserveOptions) -> bool:
    """Return whether a resource must be polled, since it can be listed and not watched.

    Raises:
        UsageError: it can't be listed either, or polling was not asked for.
    """
    if not resource.verbs or {"list", "watch"}.issubset(resource.verbs):
        return False
    verbs = ", ".join(resource.verbs)
    if "list" not in resource.verbs:
        raise UsageError(f"{word} can't be listed; its verbs are: {verbs}")
    if options.state is not None:
        raise UsageError(f"{word} can't be watched, so --state has no version to continue from")
    if not options.poll and not options.once:
        raise UsageError(
            f"{word} can't be watched; its verbs are: {verbs}; use --poll 30s to list it at an"
            " interval, or --once"
        )
    return True
