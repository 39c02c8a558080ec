"""Which nodes load balancers send to, and when that changes."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from listwatch.cache.deltas import Item
from listwatch.controllers.wire import decode
from listwatch.objects import Object

_logger = logging.getLogger(__name__)

#: Keeps a node out of load balancers, whatever its value, unless that says no.
EXCLUDE_LABEL: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
#: The cluster autoscaler is about to remove the node.
DELETION_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
# What Go's strconv.ParseBool takes for false.
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})


class _Address(msgspec.Struct, gc=False):
    type: str = ""
    address: str = ""


class _Taint(msgspec.Struct, gc=False):
    key: str = ""


class _Spec(msgspec.Struct):
    providerID: str = ""  # noqa: N815 - the field's name on the wire
    taints: list[_Taint] | None = None


class _Status(msgspec.Struct):
    addresses: list[_Address] | None = None


class _Wire(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder = msgspec.json.Decoder(_Wire)


class Node(msgspec.Struct, frozen=True, order=True):
    """A node that may be sent to.

    Two are equal when nothing differs that a load balancer depends on; readiness and load are not
    among that.

    Attributes:
        name: its name.
        provider_id: what the cloud calls it; empty for none.
        internal_ips: its addresses within the cluster.
    """

    name: str
    provider_id: str = ""
    internal_ips: tuple[str, ...] = ()


def eligible_node(obj: Object) -> Node | None:
    """Return a node that load balancers may send to, or None for one that they must not.

    The rules are those of `k8s.io/cloud-provider`: not being deleted, not excluded by its label
    (a value that is no boolean excludes), not tainted by the cluster autoscaler. Whether it is
    ready does not count: load balancers find that out for themselves.

    Raises:
        msgspec.ValidationError: fields of the wrong types.
    """
    if obj.meta.deletion_timestamp is not None:
        return None
    exclude = obj.labels.get(EXCLUDE_LABEL)
    if exclude is not None and exclude not in _FALSE:
        return None
    wire = decode(_decoder, obj.raw)
    if any(taint.key == DELETION_TAINT for taint in wire.spec.taints or ()):
        return None
    addresses = wire.status.addresses or ()
    return Node(
        obj.name,
        wire.spec.providerID,
        tuple(address.address for address in addresses if address.type == "InternalIP"),
    )


class NodeSet:
    """The nodes that load balancers send to, fed by a reflector.

    For one event loop.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        #: Set whenever the set changes; whoever acts on it clears it.
        self.changed = asyncio.Event()
        #: Set once the nodes are known.
        self.synced = asyncio.Event()

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, by name."""
        return tuple(sorted(self._nodes.values()))

    def add(self, obj: Object) -> None:
        """Take a node that is new."""
        self.update(obj)

    def update(self, obj: Object) -> None:
        """Take a node's new state."""
        self._put(obj.name, _read(obj))

    def delete(self, obj: Item) -> None:
        """Take the end of a node."""
        self._put(obj.key, None)

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:  # noqa: ARG002 - the protocol's
        """Take all nodes."""
        found = {node.name: node for obj in objs if (node := _read(obj)) is not None}
        if found != self._nodes:
            self._nodes = found
            self.changed.set()
        self.synced.set()

    def resync(self) -> None:
        """Do nothing: the controller looks at the whole set by itself."""

    def bookmark(self, resource_version: str) -> None:
        """Do nothing: nobody asks for a position."""

    def _put(self, name: str, node: Node | None) -> None:
        if self._nodes.get(name) == node:
            return
        if node is None:
            del self._nodes[name]
        else:
            self._nodes[name] = node
        self.changed.set()


def _read(obj: Object) -> Node | None:
    try:
        return eligible_node(obj)
    except msgspec.MsgspecError as error:
        _logger.warning("node %s is left out: %s", obj.name, error)
        return None
