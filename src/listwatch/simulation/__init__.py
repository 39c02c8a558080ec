"""Deterministic worlds in which a controller meets every fault, and the search among them."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.simulation.faults import (
        FAULTS,
        TokenError,
    )
    from listwatch.simulation.loop import (
        SimulationError,
    )
    from listwatch.simulation.oracles import (
        ORACLES,
        SentRequest,
        Violation,
    )
    from listwatch.simulation.report import (
        Report,
        SimulationFailedError,
    )
    from listwatch.simulation.simulating import (
        simulate,
    )
    from listwatch.simulation.state import (
        State,
    )
    from listwatch.simulation.violation_page import (
        page,
    )
    from listwatch.simulation.world import (
        World,
    )

__all__ = [
    "FAULTS",
    "ORACLES",
    "Report",
    "SentRequest",
    "SimulationError",
    "SimulationFailedError",
    "State",
    "TokenError",
    "Violation",
    "World",
    "page",
    "simulate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.simulation.faults": "FAULTS TokenError",
        "listwatch.simulation.loop": "SimulationError",
        "listwatch.simulation.oracles": "ORACLES SentRequest Violation",
        "listwatch.simulation.violation_page": "page",
        "listwatch.simulation.report": "Report SimulationFailedError",
        "listwatch.simulation.simulating": "simulate",
        "listwatch.simulation.state": "State",
        "listwatch.simulation.world": "World",
    },
)
