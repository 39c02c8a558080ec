"""A controller of typed objects, without casts; strict type checkers accept it."""

from typing import Any, assert_type

import msgspec

from listwatch import Client, Manager, Object, SharedInformer
from listwatch.cache import Lister
from listwatch.resources import Conditions, ObjectMeta, resource
from listwatch.runtime import (
    Reconciler,
    apply,
    finalize,
    owner_reference,
    set_condition,
    update_status,
)
from listwatch.sync import BlockingInformer, Cluster


class WebsiteSpec(msgspec.Struct):
    host: str
    replicas: int = 1


class Part(msgspec.Struct):
    name: str
    ready: bool = False


class WebsiteStatus(msgspec.Struct):
    parts: list[Part] = []
    conditions: Conditions = []


@resource("example.com", "v1")
class Website(msgspec.Struct):
    metadata: ObjectMeta
    spec: WebsiteSpec
    status: WebsiteStatus | None = None


@resource("example.com", "v1")
class Backup(msgspec.Struct):
    metadata: ObjectMeta
    spec: WebsiteSpec


def make_app(**options: Any) -> tuple[Manager, list[str]]:
    """Return the program, and what its reconciler has done."""
    app = Manager("websites", health_port=None, **options)
    done: list[str] = []
    websites = app.reconciler(Website, concurrency=2).owns(Backup).reads("configmaps")
    assert_type(websites, Reconciler[Website])

    @websites
    async def reconcile(key: str) -> None:
        website = websites.get(key)
        assert_type(website, Website | None)
        if website is None:
            done.append(f"{key} is gone")
            return
        name = website.metadata.name

        async def clean_up(gone: Website) -> None:
            done.append(f"{gone.metadata.name} is cleaned up")

        website = await finalize(app.client, website, "example.com/websites", clean_up)
        assert_type(website, Website | None)
        if website is None:
            return
        app.recorder.event(website, "Normal", "Seen", "it is there")
        meta = ObjectMeta(
            name=name,
            namespace=website.metadata.namespace,
            owner_references=[owner_reference(website)],
        )
        backup = await apply(app.client, Backup(meta, website.spec), field_manager="websites")
        assert_type(backup, Backup)
        backups = websites.lister(Backup).by_owner(website.metadata.uid)
        assert_type(backups, list[Backup])
        status = website.status or WebsiteStatus()
        set_condition(status.conditions, "Ready", "True", "Backed", backup.spec.host, now=app.now())
        for part in status.parts:
            part.ready = True
        written = await update_status(app.client, website, status)
        assert_type(written, Website | None)
        if written is not None:
            hosts = [other.spec.host for other in websites.lister().list()]
            done.append(f"{written.metadata.name} is one of {len(hosts)}")

    return app, done


async def other_ways(app: Manager, client: Client, cluster: Cluster) -> None:
    """Use the types elsewhere; only type checkers read this."""
    assert_type(app.informers.informer(Website), SharedInformer[Website])
    assert_type(app.informers.lister(Website).list(), list[Website])
    assert_type(app.informers.informer("pods"), SharedInformer[Object])
    assert_type(app.reconciler("pods").for_("pods").get("a"), Object | None)
    assert_type(app.reconciler("pods").for_("pods").lister("pods"), Lister[Any])
    named = app.reconciler("named").for_(Website, label_selector="app")
    assert_type(named.get("a"), Website | None)
    other = app.reconciler("models").for_("websites.example.com", decode=Backup)
    assert_type(other.get("a"), Backup | None)
    assert_type(await client.get(Website, "a"), Website)
    assert_type(cluster.informer(Website), BlockingInformer[Website])
    assert_type(cluster.informer(Website).lister.get("a"), Website)
    assert_type(cluster.informer("pods"), BlockingInformer[Object])
