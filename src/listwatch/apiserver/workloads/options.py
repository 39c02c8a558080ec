"""How pods run, for those who want it otherwise than at once."""

import msgspec


class Workloads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pods run on a server with `workloads`. All times are seconds of the server's clock.

    Attributes:
        nodes: how many nodes are made, unless there are some.
        start_seconds: from the binding of a pod until its containers run and are ready.
        run_seconds: until the containers of a Job's pod end well; a pod's annotation
            `listwatch/run-seconds` goes before, also for pods that no Job has.
        stop_seconds: from the deletion of a pod until its containers have stopped; never longer
            than its grace period.
        back_off_seconds: the first wait before containers restart or a failed pod of a Job is
            replaced; each next one is twice as long, up to 30 times this.
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
        """Return the wait after so many failures in a row, 1 or more."""
        return self.back_off_seconds * min(2.0 ** min(failures - 1, 10), 30.0)
