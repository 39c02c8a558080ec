"""Copies every ConfigMap with the label sync.example.com/everywhere to all namespaces.

Keys are those of sources. A namespace wakes all sources; a copy wakes its source, so that a changed
or deleted copy is restored. Owner references can't cross namespaces, so a label on each copy names
its source, and a finalizer on the source deletes the copies; they are also deleted when the source
loses its label. A ConfigMap of the same name that is not a copy is left alone.
"""

from collections.abc import Iterable
from typing import Any

from listwatch import Object
from listwatch.cache import split_key
from listwatch.runtime import Manager, apply, finalize, has

NAME = "config-sync"
EVERYWHERE = "sync.example.com/everywhere"
SOURCE = "sync.example.com/source"
FINALIZER = "sync.example.com/copies"


def make_app(**options: Any) -> Manager:
    """Return the program; `options` are those of `Manager`."""
    app = Manager(NAME, **options)
    sync = app.reconciler("config-sync", timeout=60)
    sync.writes("configmaps", "create", "patch", "delete")

    def sources(namespace: Object) -> Iterable[str]:
        del namespace  # it needs all namespaces
        return [obj.key for obj in sync.lister("configmaps").list() if EVERYWHERE in obj.labels]

    sync.for_("configmaps", predicates=[has(concerns_us)])
    sync.watches("namespaces", sources)
    sync.watches("configmaps", source_of, predicates=[has(lambda obj: SOURCE in obj.labels)])

    def copies(key: str) -> list[Object]:
        return [obj for obj in sync.lister("configmaps").list() if key in source_of(obj)]

    async def delete_copies(key: str) -> None:
        for copy in copies(key):
            await app.client.delete("configmaps", copy.name, copy.namespace, uid=copy.uid)

    @sync
    async def reconcile(key: str) -> None:
        source = sync.get(key)
        if source is None or not concerns_us(source):
            return
        if EVERYWHERE not in source.labels and source.meta.deletion_timestamp is None:
            await delete_copies(key)
            return
        kept = await finalize(app.client, source, FINALIZER, lambda _: delete_copies(key))
        if kept is None:
            return
        for namespace in sync.lister("namespaces").list():
            leaving = namespace.meta.deletion_timestamp is not None
            if namespace.name == source.namespace or leaving:
                continue
            there = sync.get(f"{namespace.name}/{source.name}")
            if there is not None and key not in source_of(there):
                words = f"{namespace.name} has a ConfigMap of this name that is no copy"
                app.recorder.event(source, "Warning", "NotCopied", words)
                continue
            await apply(app.client, copy_of(source, namespace.name), field_manager=NAME)

    return app


def concerns_us(obj: Object) -> bool:
    """Return whether this is a source, or was one and still has our finalizer."""
    return EVERYWHERE in obj.labels or FINALIZER in obj.meta.finalizers


def source_of(obj: Object) -> list[str]:
    """Return the key of a copy's source; nothing if it is not a copy."""
    source = obj.labels.get(SOURCE, "")
    return [source.replace("_", "/", 1)] if "_" in source else []


def copy_of(source: Object, namespace: str) -> dict[str, Any]:
    """Return the copy of a ConfigMap for a namespace."""
    whole = source.to_dict()
    place = split_key(source.key)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": source.name,
            "namespace": namespace,
            # A label value can't contain a slash, and no name contains an underscore.
            "labels": {SOURCE: f"{place.namespace}_{place.name}"},
        },
        **{name: whole[name] for name in ("data", "binaryData") if name in whole},
    }


if __name__ == "__main__":
    make_app().run()
