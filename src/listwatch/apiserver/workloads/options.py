"""Options for how pods run."""

import msgspec


class Workloads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pods run on a server with `workloads`. All times are seconds of the server's clock.

    Attributes:
        nodes: number of nodes to create, unless there are some.
        start_seconds: from the binding of a pod until its containers are ready.
        run_seconds: until the containers of a Job's pod complete; a pod's annotation
            `listwatch/run-seconds` takes precedence, also for pods without a Job.
        stop_seconds: from the deletion of a pod until its containers have stopped; at most its
            grace period.
        back_off_seconds: first delay before containers restart or a failed pod of a Job is
            replaced; doubles each time, up to 30 times this.
    """

    nodes: int = 1
    start_seconds: float = 0.0
    run_seconds: float = 0.0
    stop_seconds: float = 0.0
    back_off_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise ValueError(f"nodes: {self.nodes} is negative")
        for name in ("start_seconds", "run_seconds", "stop_seconds", "back_off_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")

    def back_off(self, failures: int) -> float:
        """Return the delay after this many failures in a row, 1 or more."""
        return self.back_off_seconds * min(2.0 ** min(failures - 1, 10), 30.0)
