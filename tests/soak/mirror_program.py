"""A controller that copies every object of one namespace to another."""

import sys

from listwatch.client.config import Config
from listwatch.errors import NotFoundError
from listwatch.runtime import LeadershipLostError, LeaseTimings, Manager, ManagerError, apply

url, source, target = sys.argv[1:]
app = Manager(
    "mirror",
    config=Config(server=url),
    leader_election="mirror",
    namespace="default",
    lease_timings=LeaseTimings(lease_duration=10, renew_deadline=7, retry_period=1),
    health_port=None,
    grace=2,
)
mirror = app.reconciler("mirror", concurrency=4, timeout=20)
mirror.for_("configmaps", namespace=source)
# Copies wake it too: their originals may be deleted while no replica runs.
mirror.watches("configmaps", lambda copy: [f"{source}/{copy.name}"], namespace=target)


@mirror
async def reconcile(key: str) -> None:
    """Write the copy, or delete it."""
    original, name = mirror.get(key), key.partition("/")[2]
    if original is None:
        try:
            await app.client.delete("configmaps", name, target)
        except NotFoundError:
            return
    else:
        metadata = {"name": name, "namespace": target}
        obj = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"number": original["data"]["number"]},
        }
        await apply(app.client, obj, field_manager="mirror", force=True)


try:
    app.run()
except ManagerError as error:
    if not isinstance(error.__cause__, LeadershipLostError):
        raise
    sys.exit(3)  # another replica leads; a supervisor restarts this one
