"""Runs every Website as a Deployment, and reports its progress in the status."""

from typing import Any

import msgspec

from listwatch import Manager, Object, ObjectDecodeError, TerminalError
from listwatch.runtime import (
    apply,
    finalize,
    set_condition,
    set_owner,
    update_status,
)

NAME = "website-controller"
FINALIZER = "example.com/website"


class WebsiteSpec(msgspec.Struct):
    """The spec of a Website."""

    image: str
    replicas: int = 1


class Website(msgspec.Struct):
    """The part of a Website that this controller reads."""

    spec: WebsiteSpec


def make_app(**options: Any) -> Manager:
    """Return the program; `options` are those of `Manager`."""
    app = Manager(NAME, **{"leader_election": NAME} | options)
    websites = app.reconciler("websites", concurrency=4, timeout=60)
    websites.for_("websites.example.com").owns("deployments.apps")
    websites.writes("websites.example.com", "patch")  # the finalizer
    websites.writes("websites.example.com/status", "patch")
    websites.writes("deployments.apps", "create", "patch")

    async def clean_up(website: Object) -> None:
        # Clean up here what garbage collection does not know: a DNS record, a bucket.
        app.recorder.event(website, "Normal", "CleanedUp", "nothing is left outside")

    @websites
    async def reconcile(key: str) -> None:
        website = websites.get(key)
        if website is None:
            return

        website = await finalize(app.client, website, FINALIZER, clean_up)
        if website is None:
            return
        try:
            spec = website.decode(Website).spec
        except ObjectDecodeError as error:
            raise TerminalError(str(error)) from error  # until the spec changes
        deployment = await apply(app.client, wanted(website, spec), field_manager=NAME)
        ready = (deployment.get("status") or {}).get("readyReplicas", 0)
        await update_status(app.client, website, status(website, ready, spec.replicas, app.now()))

    return app


def wanted(website: Object, spec: WebsiteSpec) -> dict[str, Any]:
    """Return the Deployment for a Website."""
    labels = {"app.kubernetes.io/name": website.name}
    container = {"name": "web", "image": spec.image, "ports": [{"containerPort": 80}]}
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": website.name, "namespace": website.namespace, "labels": labels},
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    set_owner(deployment, website)
    return deployment


def status(website: Object, ready: int, replicas: int, now: str) -> dict[str, Any]:
    """Return the status with the number of ready replicas."""
    conditions = (website.to_dict().get("status") or {}).get("conditions") or []
    set_condition(
        conditions,
        "Ready",
        "True" if ready >= replicas else "False",
        "AllReady" if ready >= replicas else "Waiting",
        f"{ready} of {replicas} replicas are ready",
        now=now,
        observed_generation=website.meta.generation,
    )
    return {"readyReplicas": ready, "conditions": conditions}


if __name__ == "__main__":
    make_app().run()
