"""What controllers are made of: reconcilers, a manager, leader election, sharing, events."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.runtime.body_scope import ManagerError
    from listwatch.runtime.candidate import LeaseTimings
    from listwatch.runtime.clusters.cluster_key import ClusterKey
    from listwatch.runtime.clusters.cluster_reconciler import ClusterReconciler
    from listwatch.runtime.clusters.clusters import Clusters, ClusterStatus
    from listwatch.runtime.clusters.finding import in_kubeconfig, in_secrets, polled
    from listwatch.runtime.coordinated import Coordination
    from listwatch.runtime.crash import (
        handle_crash,
    )
    from listwatch.runtime.event_correlation import EventLimits, ObjectReference
    from listwatch.runtime.events import (
        EventRecorder,
    )
    from listwatch.runtime.leader_election import LeaderElector
    from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
    from listwatch.runtime.loading import (
        load_app,
    )
    from listwatch.runtime.manager import (
        Manager,
    )
    from listwatch.runtime.predicates import (
        Predicate,
        all_of,
        annotations_changed,
        any_of,
        differs,
        fields_changed,
        generation_changed,
        has,
        labels_changed,
        none_of,
        not_deleted,
        resource_version_changed,
    )
    from listwatch.runtime.reaper import (
        Reaper,
    )
    from listwatch.runtime.reconcile_context import (
        ReconcileContext,
        ReconcileFilter,
        current_reconcile,
    )
    from listwatch.runtime.reconciler import (
        Reconciler,
    )
    from listwatch.runtime.results import (
        DONE,
        Result,
        TerminalError,
        requeue,
        requeue_after,
    )
    from listwatch.runtime.sharing import (
        ShareMember,
    )
    from listwatch.runtime.tracing import Tracing, with_trace_context
    from listwatch.runtime.writing import (
        OwnershipError,
        apply,
        create_or_update,
        finalize,
        is_owned_by,
        merge_patch,
        owner_reference,
        set_condition,
        set_owner,
        update_status,
    )

__all__ = [
    "DONE",
    "ClusterKey",
    "ClusterReconciler",
    "ClusterStatus",
    "Clusters",
    "Coordination",
    "EventLimits",
    "EventRecorder",
    "LeaderElector",
    "LeadershipGuard",
    "LeadershipLostError",
    "LeaseTimings",
    "Manager",
    "ManagerError",
    "ObjectReference",
    "OwnershipError",
    "Predicate",
    "Reaper",
    "ReconcileContext",
    "ReconcileFilter",
    "Reconciler",
    "Result",
    "ShareMember",
    "TerminalError",
    "Tracing",
    "all_of",
    "annotations_changed",
    "any_of",
    "apply",
    "create_or_update",
    "current_reconcile",
    "differs",
    "fields_changed",
    "finalize",
    "generation_changed",
    "handle_crash",
    "has",
    "in_kubeconfig",
    "in_secrets",
    "is_owned_by",
    "labels_changed",
    "load_app",
    "merge_patch",
    "none_of",
    "not_deleted",
    "owner_reference",
    "polled",
    "requeue",
    "requeue_after",
    "resource_version_changed",
    "set_condition",
    "set_owner",
    "update_status",
    "with_trace_context",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.runtime.candidate": "LeaseTimings",
        "listwatch.runtime.clusters.cluster_key": "ClusterKey",
        "listwatch.runtime.clusters.cluster_reconciler": "ClusterReconciler",
        "listwatch.runtime.clusters.clusters": "ClusterStatus Clusters",
        "listwatch.runtime.clusters.finding": "in_kubeconfig in_secrets polled",
        "listwatch.runtime.coordinated": "Coordination",
        "listwatch.runtime.crash": "handle_crash",
        "listwatch.runtime.event_correlation": "EventLimits ObjectReference",
        "listwatch.runtime.events": "EventRecorder",
        "listwatch.runtime.leader_election": "LeaderElector",
        "listwatch.runtime.leading": "LeadershipGuard LeadershipLostError",
        "listwatch.runtime.loading": "load_app",
        "listwatch.runtime.body_scope": "ManagerError",
        "listwatch.runtime.manager": "Manager",
        "listwatch.runtime.predicates": (
            "Predicate all_of annotations_changed any_of differs fields_changed "
            "generation_changed has labels_changed none_of not_deleted resource_version_changed"
        ),
        "listwatch.runtime.reaper": "Reaper",
        "listwatch.runtime.reconcile_context": (
            "ReconcileContext ReconcileFilter current_reconcile"
        ),
        "listwatch.runtime.reconciler": "Reconciler",
        "listwatch.runtime.results": "DONE Result TerminalError requeue requeue_after",
        "listwatch.runtime.sharing": "ShareMember",
        "listwatch.runtime.tracing": "Tracing with_trace_context",
        "listwatch.runtime.writing": (
            "OwnershipError apply create_or_update finalize is_owned_by merge_patch "
            "owner_reference set_condition set_owner update_status"
        ),
    },
)
