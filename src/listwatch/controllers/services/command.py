"""The command `listwatch service-controller`."""

import asyncio
import functools
import hashlib
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from listwatch.accepting import raise_file_limit
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.connection_options import ConnectionOptions, connection_options
from listwatch.controllers.command_options import Seconds, manager_options
from listwatch.controllers.services.api import ClientServices
from listwatch.controllers.services.figures import TellsFigures
from listwatch.controllers.services.metrics import collect, collect_load_balancers
from listwatch.controllers.services.provider import LoadBalancerProvider
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.endpoints import SERVICE_NAME
from listwatch.controllers.services.providers.haproxy import HAProxyProvider
from listwatch.controllers.services.providers.haproxy_process import require_program
from listwatch.controllers.services.providers.haproxy_supervisor import OLD_WORKER_SECONDS
from listwatch.controllers.services.providers.kept_directory import default_directory
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.controllers.services.providers.pool_file import PoolFile
from listwatch.controllers.services.providers.pools import PoolError
from listwatch.controllers.services.service_controller import ServiceController
from listwatch.controllers.services.status import rows, table
from listwatch.runtime.crash import handle_crash
from listwatch.runtime.health import Check
from listwatch.runtime.manager import Manager
from listwatch.runtime.reaper import Reaper

if TYPE_CHECKING:
    from prometheus_client import Metric

_NAME = "service-controller"
_DEFAULT_POOL = "127.0.0.0/8"
_WIDE = 1000
# Services synced at the same time share one HAProxy reload: 500 workers serve 500 services within
# two seconds; ten workers would take half a minute.
_WORKERS: Final = {"local": 10, "haproxy": 500}


def _pool_of(
    _ctx: click.Context, _param: click.Parameter, networks: tuple[str, ...]
) -> AddressPool | None:
    try:
        return AddressPool(networks) if networks else None
    except PoolError as error:
        raise click.BadParameter(str(error), param_hint="--address-pool") from None


def _pool_file(ctx: click.Context, _param: click.Parameter, path: Path | None) -> PoolFile | None:
    if path is None:
        return None
    if ctx.params.get("address_pool") is not None:
        raise click.UsageError("give either --address-pool or --address-pool-file, not both")
    try:
        return PoolFile(path)
    except PoolError as error:
        raise click.BadParameter(str(error), param_hint="--address-pool-file") from None


def _directory_of(cluster: str, load_balancer_class: str | None) -> Path:
    """Return HAProxy's default directory: the same for each controller of the same services."""
    identity = hashlib.sha256(f"{cluster}\n{load_balancer_class or ''}".encode()).hexdigest()
    return default_directory(f"haproxy-{identity[:12]}")


class _Shown:
    """The running controller and its provider, for metrics."""

    def __init__(self) -> None:
        self.controller: ServiceController | None = None
        self.provider: object = None  # a provider need not have figures

    def metrics(self) -> Iterator["Metric"]:
        if self.controller is not None:
            yield from collect(self.controller.statistics())
        if isinstance(self.provider, TellsFigures):
            yield from collect_load_balancers(self.provider.figures())

    def check(self) -> Check:
        provider = self.provider
        problem = provider.figures().problem if isinstance(provider, TellsFigures) else ""
        return Check("load balancers", not problem, problem)

    def retry_all(self) -> None:
        if self.controller is not None:
            self.controller.retry_all()


def _or_status(run: Callable[..., None]) -> Callable[..., None]:
    """Add an option that prints a table instead of running the controller."""

    @click.option(
        "--status",
        is_flag=True,
        help="Print services, addresses, backends and health, and exit.",
    )
    @functools.wraps(run)
    def either(*, status: bool, **options: Any) -> None:
        if not status:
            if platform.system() != "Linux":
                raise click.ClickException("listwatch service-controller runs on Linux alone")
            run(**options)
            return
        connection: ConnectionOptions = options["connection"]
        host, port = options["health_host"], options["health_port"]
        at = f"[{host}]" if ":" in host else host
        asyncio.run(
            _print_status(
                connection.config(),
                options["load_balancer_class"],
                f"http://{at}:{port}/metrics" if port else "",
            )
        )

    return either


async def _print_status(config: Config, load_balancer_class: str | None, metrics_url: str) -> None:
    from rich.console import Console  # noqa: PLC0415 - loaded on first use

    async with Client.from_config(config) as client:
        found = await rows(client, load_balancer_class, metrics_url)
    if not found:
        click.echo("no services of type LoadBalancer", err=True)
        return
    # Don't truncate output to a file or a program.
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table(found))


@click.command(_NAME)
@connection_options
@click.option(
    "--provider",
    type=click.Choice(["local", "haproxy"]),
    default="local",
    show_default=True,
    help="Where load balancers run: in this process, or in an HAProxy that it starts.",
)
@click.option(
    "--address-pool",
    multiple=True,
    show_default=_DEFAULT_POOL,
    metavar="NETWORK",
    callback=_pool_of,
    is_eager=True,  # the next option reads it
    help="Network or range to allocate load balancer addresses from; may be repeated.",
)
@click.option(
    "--address-pool-file",
    "pool_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_pool_file,
    help="YAML file of named address pools, read again when it changes.",
)
@click.option(
    "--backends",
    type=click.Choice(["endpoint-slices", "node-ports"]),
    default="endpoint-slices",
    show_default=True,
    help="Send traffic to the endpoints directly, or to node ports.",
)
@click.option(
    "--drain",
    default=30.0,
    show_default=True,
    type=Seconds(),
    metavar="SECONDS",
    help="Keep connections to removed backends and services open for this time.",
)
@click.option(
    "--old-worker-time",
    default=OLD_WORKER_SECONDS,
    show_default=True,
    type=Seconds(1),
    metavar="SECONDS",
    help="Keep other connections open in an HAProxy process that a reload replaced.",
)
@click.option(
    "--runtime-directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    show_default="in /run/listwatch or $XDG_RUNTIME_DIR/listwatch",
    help="Keep the files of a running HAProxy here, for the next controller.",
)
@click.option(
    "--stop-with-controller",
    is_flag=True,
    help="End HAProxy and its connections when the controller ends.",
)
@click.option(
    "--health-check-period",
    default=10.0,
    show_default=True,
    type=Seconds(0.1),
    metavar="SECONDS",
    help="Interval between backend health checks.",
)
@click.option(
    "--cluster-name",
    metavar="NAME",
    default="kubernetes",
    show_default=True,
    help="Cluster name passed to the provider.",
)
@click.option("--load-balancer-class", metavar="NAME", help="Serve only services of this class.")
@click.option(
    "--concurrent-service-syncs",
    "workers",
    type=click.IntRange(min=1),
    show_default="10; 500 with HAProxy",
    help="Maximum number of services synced in parallel.",
)
@click.option(
    "--service-sync-period",
    default=300.0,
    show_default=True,
    type=Seconds(1),
    metavar="SECONDS",
    help="Interval at which every load balancer is checked and repaired.",
)
@click.option(
    "--node-sync-period",
    default=100.0,
    show_default=True,
    type=Seconds(1),
    metavar="SECONDS",
    help="Interval at which every load balancer's nodes are compared, changed or not.",
)
@_or_status
@manager_options(_NAME)
def service_controller_command(
    *,
    app: Manager,
    provider: Literal["local", "haproxy"],
    address_pool: AddressPool | None,
    pool_file: PoolFile | None,
    backends: Literal["endpoint-slices", "node-ports"],
    drain: float,
    old_worker_time: float,
    runtime_directory: Path | None,
    stop_with_controller: bool,
    health_check_period: float,
    cluster_name: str,
    load_balancer_class: str | None,
    workers: int | None,
    service_sync_period: float,
    node_sync_period: float,
) -> None:
    """Provide load balancers for services of type LoadBalancer until SIGTERM."""
    if provider == "haproxy":
        require_program("haproxy")  # fail before anything starts
    elif runtime_directory is not None or stop_with_controller:
        raise click.UsageError(
            "--runtime-directory and --stop-with-controller are for --provider haproxy"
        )
    pool = address_pool if pool_file is None else pool_file.pool
    if pool is None:  # an empty pool is falsy
        pool = AddressPool([_DEFAULT_POOL])
    raise_file_limit()
    shown = _Shown()

    def open_provider(client: Client) -> AbstractAsyncContextManager[LoadBalancerProvider]:
        slices = None
        if backends == "endpoint-slices":
            slices = client.list_watch(
                "endpointslices.v1.discovery.k8s.io", label_selector=SERVICE_NAME
            )
        if provider == "local":
            make: Callable[..., LocalProvider | HAProxyProvider] = LocalProvider
        else:
            make = partial(
                HAProxyProvider,
                old_worker_seconds=old_worker_time,
                directory=runtime_directory or _directory_of(cluster_name, load_balancer_class),
                outlives=not stop_with_controller,
            )
        return make(
            pool,
            backends=backends,
            endpoint_slices=slices,
            health_check_seconds=health_check_period,
            drain_seconds=drain,
        )

    async def control() -> None:
        client = app.client
        with handle_crash("the service controller"):
            async with open_provider(client) as made:
                controller = ServiceController(
                    made,
                    ClientServices(client),
                    client.list_watch("services.v1."),
                    client.list_watch("nodes.v1."),
                    cluster=cluster_name,
                    load_balancer_class=load_balancer_class,
                    recorder=app.recorder,
                    workers=workers or _WORKERS[provider],
                    service_sync_period=service_sync_period,
                    node_sync_period=node_sync_period,
                )
                shown.controller, shown.provider = controller, made
                await controller.run(app.guard)

    async def follow_pools(file: PoolFile) -> None:
        await file.follow(shown.retry_all)

    if pool_file is not None:
        app.task(partial(follow_pools, pool_file), name="address pools")
    app.metrics(shown.metrics)
    app.ready_check(shown.check)
    app.task(control, name=_NAME)
    # As PID 1 in a container, this process inherits HAProxy's orphans.
    app.task(Reaper().run, name="reaper", leader_only=False)
    app.run()
