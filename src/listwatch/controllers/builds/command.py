"""The command `listwatch build-controllers`."""

import click

from listwatch.client.connection_options import connection_options
from listwatch.controllers.builds.api import ClientBuilds
from listwatch.controllers.builds.factory import (
    RELIST_SECONDS,
    BuildControllerFactory,
    BuildPodControllerFactory,
    DeleteController,
)
from listwatch.controllers.builds.naming import BUILD_NAME
from listwatch.controllers.command_options import Seconds, manager_options
from listwatch.runtime.crash import handle_crash
from listwatch.runtime.manager import Manager

_NAME = "build-controllers"


@click.command(_NAME)
@connection_options
@click.option(
    "--resource",
    default="builds.build.openshift.io",
    show_default=True,
    metavar="WORD",
    help="Resource that holds the builds.",
)
@click.option("-n", "--namespace", metavar="NAME", help="Handle this namespace only.")
@click.option(
    "--relist-period",
    default=RELIST_SECONDS,
    show_default=True,
    type=Seconds(1),
    metavar="SECONDS",
    help="Interval between searches for deletions that the watch missed.",
)
@manager_options(_NAME)
def build_controllers_command(
    *, app: Manager, resource: str, namespace: str | None, relist_period: float
) -> None:
    """Run OpenShift's two build deletion controllers until SIGTERM.

    They set a build to phase Error when its pod is deleted, and delete a pod when its build is
    deleted.
    """

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
