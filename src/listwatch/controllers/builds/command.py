"""The command `listwatch build-controllers`."""

from pathlib import Path

import click

from listwatch.client.kubeconfig import load_config
from listwatch.controllers.builds.api import ClientBuilds
from listwatch.controllers.builds.factory import (
    RELIST_SECONDS,
    BuildControllerFactory,
    BuildPodControllerFactory,
    DeleteController,
)
from listwatch.controllers.builds.naming import BUILD_NAME
from listwatch.controllers.command_options import connection_options, manager_options
from listwatch.runtime.crash import handle_crash
from listwatch.runtime.manager import Manager


@click.command("build-controllers")
@connection_options
@click.option(
    "--resource",
    default="builds.build.openshift.io",
    show_default=True,
    metavar="WORD",
    help="Which resource the builds are.",
)
@click.option("-n", "--namespace", metavar="NAME", help="Handle this namespace only.")
@click.option(
    "--relist-period",
    default=RELIST_SECONDS,
    show_default=True,
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Look this often for deletions that no watch has told.",
)
@manager_options
def build_controllers_command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    resource: str,
    namespace: str | None,
    relist_period: float,
    leader_elect: bool,
    lease_namespace: str,
    health_host: str,
    health_port: int,
) -> None:
    """Run the two build controllers of OpenShift that handle deletions, until SIGTERM.

    A build whose pod is deleted ends with the phase Error; a pod whose build is deleted is
    deleted.
    """
    app = Manager(
        "build-controllers",
        config=load_config(kubeconfig, context=context),
        leader_election="build-controllers" if leader_elect else None,
        namespace=lease_namespace,
        health_host=health_host,
        health_port=health_port,
    )

    def pods_delete() -> DeleteController:
        client = app.client
        return BuildPodControllerFactory(
            ClientBuilds(client, resource),
            client.list_watch("pods.v1.", namespace, label_selector=BUILD_NAME),
            client.list_watch(resource, namespace),
            recorder=app.recorder,
            relist_period=relist_period,
        ).create_delete_controller()

    def builds_delete() -> DeleteController:
        client = app.client
        return BuildControllerFactory(
            ClientBuilds(client, resource),
            client.list_watch(resource, namespace),
            client.list_watch("pods.v1.", namespace, label_selector=BUILD_NAME),
            relist_period=relist_period,
        ).create_delete_controller()

    async def handle_pod_deletions() -> None:
        with handle_crash("the build pod delete controller"):
            await pods_delete().run()

    async def handle_build_deletions() -> None:
        with handle_crash("the build delete controller"):
            await builds_delete().run()

    app.task(handle_pod_deletions, name="build-pod-delete-controller")
    app.task(handle_build_deletions, name="build-delete-controller")
    app.run()
