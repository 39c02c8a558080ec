"""Deletes ConfigMaps some seconds after their creation, set by the annotation expire-after.

Any number of replicas share the work.
"""

from datetime import UTC, datetime
from typing import Any

from listwatch import NotFoundError
from listwatch.runtime import Manager, Result, TerminalError, annotations_changed, requeue_after

NAME = "expiry"
ANNOTATION = "example.com/expire-after"


def make_app(**options: Any) -> Manager:
    """Return the program; `options` are those of `Manager`."""
    app = Manager(NAME, **{"sharing": NAME} | options)
    maps = app.reconciler("expiry", concurrency=8, timeout=30)
    maps.for_("configmaps", predicates=[annotations_changed])
    maps.writes("configmaps", "delete")

    @maps
    async def reconcile(key: str) -> Result | None:
        obj = maps.get(key)
        if obj is None:
            return None
        metadata = obj.to_dict()["metadata"]
        text = (metadata.get("annotations") or {}).get(ANNOTATION)
        if text is None:
            return None
        if not text.isdecimal():
            raise TerminalError(f"{ANNOTATION} is {text!r}, not a number of seconds")
        made = datetime.fromisoformat(metadata["creationTimestamp"])
        left = int(text) - (datetime.now(UTC) - made).total_seconds()
        if left > 0:
            return requeue_after(left)
        try:
            await app.client.delete("configmaps", obj.name, obj.namespace, uid=obj.uid)
        except NotFoundError:
            return None
        app.recorder.event(obj, "Normal", "Expired", f"deleted after {text} s")
        return None

    return app


if __name__ == "__main__":
    make_app().run()
