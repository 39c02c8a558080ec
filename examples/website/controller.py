"""Runs every Website as a Deployment, and reports its progress in the status."""

from typing import Any

from listwatch import Manager
from listwatch.runtime import apply, finalize, set_condition, set_owner, update_status
from listwatch.webhooks import AdmissionRequest
from website_types import Website, WebsiteStatus, conversions

NAME = "website-controller"
FINALIZER = "example.com/website"


def make_app(**options: Any) -> Manager:
    """Return the program; `options` are those of `Manager`."""
    app = without_webhooks(**options)
    app.convert(conversions)

    @app.validate(Website)
    def check_image(request: AdmissionRequest[Website]) -> None:
        # What a rule of the schema can't say belongs here; see also Denied.
        if ":" not in request.obj.spec.image:
            request.warn(f"spec.image: {request.obj.spec.image} without a tag is what is newest")

    return app


def without_webhooks(**options: Any) -> Manager:
    """Return the program with its reconciler alone, as simulations need it."""
    options.setdefault("leader_election", NAME)
    app = Manager(NAME, **options)
    websites = app.reconciler(Website, concurrency=4, timeout=60).owns("deployments.apps")
    websites.writes(Website, "patch")  # the finalizer
    websites.writes("websites.example.com/status", "patch")
    websites.writes("deployments.apps", "create", "patch")

    @websites
    async def reconcile(key: str) -> None:
        website = websites.get(key)
        if website is None:
            return

        async def clean_up(website: Website) -> None:
            # Clean up here what garbage collection does not know: a DNS record, a bucket.
            app.recorder.event(website, "Normal", "CleanedUp", "nothing is left outside")

        website = await finalize(app.client, website, FINALIZER, clean_up)
        if website is None:
            return
        deployment = await apply(app.client, wanted(website), field_manager=NAME)
        seen: dict[str, Any] = deployment.get("status") or {}
        ready = seen.get("readyReplicas", 0)
        await update_status(app.client, website, status(website, ready, app.now()))

    return app


def wanted(website: Website) -> dict[str, Any]:
    """Return the Deployment for a Website."""
    meta = website.metadata
    labels = {"app.kubernetes.io/name": meta.name}
    container = {"name": "web", "image": website.spec.image, "ports": [{"containerPort": 80}]}
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": meta.name, "namespace": meta.namespace, "labels": labels},
        "spec": {
            "replicas": website.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    set_owner(deployment, website)
    return deployment


def status(website: Website, ready: int, now: str) -> WebsiteStatus:
    """Return the status with the number of ready replicas."""
    replicas = website.spec.replicas
    found = WebsiteStatus(ready, list(website.status.conditions) if website.status else [])
    set_condition(
        found.conditions,
        "Ready",
        "True" if ready >= replicas else "False",
        "AllReady" if ready >= replicas else "Waiting",
        f"{ready} of {replicas} replicas are ready",
        now=now,
        observed_generation=website.metadata.generation,
    )
    return found


if __name__ == "__main__":
    make_app().run()
