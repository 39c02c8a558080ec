"""The nodes that load balancers use, and the changes that matter."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from listwatch.cache.deltas import Item
from listwatch.controllers.wire import decode
from listwatch.objects import Object

_logger = logging.getLogger(__name__)

#: Keeps a node out of load balancers, with any value except a false one.
EXCLUDE_LABEL: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
#: The cluster autoscaler is about to remove the node.
DELETION_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
# The false values of Go's strconv.ParseBool.
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})


class _Address(msgspec.Struct, gc=False):
    type: str = ""
    address: str = ""


class _Taint(msgspec.Struct, gc=False):
    key: str = ""


class _Spec(msgspec.Struct):
    providerID: str = ""  # noqa: N815 - the name in JSON
    taints: list[_Taint] | None = None


class _Status(msgspec.Struct):
    addresses: list[_Address] | None = None


class _Wire(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder = msgspec.json.Decoder(_Wire)


class Node(msgspec.Struct, frozen=True, order=True):
    """A node that load balancers may use.

    Nodes are equal if a load balancer can't tell them apart; readiness and load do not count.

    Attributes:
        name: its name.
        provider_id: the cloud's ID of it; empty for none.
        internal_ips: its addresses within the cluster.
    """

    name: str
    provider_id: str = ""
    internal_ips: tuple[str, ...] = ()


def eligible_node(obj: Object) -> Node | None:
    """Return a node that load balancers may use, or None for one that they must not.

    The rules are those of `k8s.io/cloud-provider`: the node is not being deleted, not excluded by
    its label (a non-boolean value excludes), and not tainted by the cluster autoscaler. Readiness
    does not count: load balancers check that themselves.

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
    """The nodes that load balancers use: a handler of an informer's nodes.

    For one event loop.

    Args:
        on_change: called after each change of the set, and of a node in it if load balancers depend
            on the change.
    """

    def __init__(self, on_change: Callable[[], object] = lambda: None) -> None:
        self._on_change = on_change
        self._nodes: dict[str, Node] = {}
        self._sorted: tuple[Node, ...] | None = None

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, by name."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._nodes.values()))
        return self._sorted

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: ARG002, FBT001 - required by the protocol
        """Add a new node."""
        self._put(obj.name, _read(obj))

    def on_update(self, old: Object, new: Object) -> None:  # noqa: ARG002 - required by the protocol
        """Update a node."""
        self._put(new.name, _read(new))

    def on_delete(self, obj: Item) -> None:
        """Remove a node."""
        self._put(obj.key, None)

    def _put(self, name: str, node: Node | None) -> None:
        if self._nodes.get(name) == node:
            return
        if node is None:
            del self._nodes[name]
        else:
            self._nodes[name] = node
        self._sorted = None  # sorted on demand: a cluster's nodes arrive one by one
        self._on_change()


def _read(obj: Object) -> Node | None:
    try:
        return eligible_node(obj)
    except msgspec.MsgspecError as error:
        _logger.warning("node %s is skipped: %s", obj.name, error)
        return None
