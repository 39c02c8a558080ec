"""What controllers are made of: reconcilers, a manager, leader election, sharding, events.

The public names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from listwatch.runtime.crash import handle_crash
    from listwatch.runtime.events import EventRecorder
    from listwatch.runtime.leader_election import (
        LeaderElector,
        LeadershipGuard,
        LeadershipLostError,
        LeaseTimings,
    )
    from listwatch.runtime.loading import load_app
    from listwatch.runtime.manager import Manager, ManagerError
    from listwatch.runtime.reaper import Reaper
    from listwatch.runtime.reconciler import Reconciler
    from listwatch.runtime.results import DONE, Result, TerminalError, requeue_after
    from listwatch.runtime.sharding import ShardMember
    from listwatch.runtime.writing import (
        apply,
        create_or_update,
        finalize,
        is_owned_by,
        set_condition,
        set_owner,
        update_status,
    )

_HOME = {
    "DONE": "results",
    "EventRecorder": "events",
    "LeaderElector": "leader_election",
    "LeadershipGuard": "leader_election",
    "LeadershipLostError": "leader_election",
    "LeaseTimings": "leader_election",
    "Manager": "manager",
    "ManagerError": "manager",
    "Reaper": "reaper",
    "Reconciler": "reconciler",
    "Result": "results",
    "ShardMember": "sharding",
    "TerminalError": "results",
    "apply": "writing",
    "create_or_update": "writing",
    "finalize": "writing",
    "handle_crash": "crash",
    "is_owned_by": "writing",
    "load_app": "loading",
    "requeue_after": "results",
    "set_condition": "writing",
    "set_owner": "writing",
    "update_status": "writing",
}

__all__ = [
    "DONE",
    "EventRecorder",
    "LeaderElector",
    "LeadershipGuard",
    "LeadershipLostError",
    "LeaseTimings",
    "Manager",
    "ManagerError",
    "Reaper",
    "Reconciler",
    "Result",
    "ShardMember",
    "TerminalError",
    "apply",
    "create_or_update",
    "finalize",
    "handle_crash",
    "is_owned_by",
    "load_app",
    "requeue_after",
    "set_condition",
    "set_owner",
    "update_status",
]


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
