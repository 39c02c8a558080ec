"""Coordinated leader election against a server that serves LeaseCandidates, here by definition."""

import random
from typing import Any

from listwatch.client.client import Client
from listwatch.clock import FakeClock
from listwatch.runtime.api_time import micro_time
from listwatch.runtime.candidate import LeaseTimings
from listwatch.runtime.coordinated import CoordinatedCandidate, Coordination
from listwatch.runtime.lease import LEASE_CANDIDATES, LEASES, ClientLeases, LeaseRecord, new_lease

DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": LEASE_CANDIDATES,
        "annotations": {"api-approved.kubernetes.io": "https://kep.k8s.io/4355"},
    },
    "spec": {
        "group": "coordination.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "leasecandidates", "kind": "LeaseCandidate"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["leaseName", "binaryVersion", "strategy"],
                                "properties": {
                                    "leaseName": {"type": "string"},
                                    "binaryVersion": {"type": "string"},
                                    "emulationVersion": {"type": "string"},
                                    "strategy": {"type": "string"},
                                    "pingTime": {"type": "string", "format": "date-time"},
                                    "renewTime": {"type": "string", "format": "date-time"},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


def candidate(client: Client, identity: str, clock: FakeClock) -> CoordinatedCandidate:
    return CoordinatedCandidate(
        ClientLeases(client, "default"),
        Coordination(binary_version="1.3.0", emulation_version="1.2.0"),
        namespace="default",
        name="lock",
        identity=identity,
        timings=LeaseTimings(),
        on_event=lambda _: None,
        clock=clock,
        clocks=[clock.now],
        rng=random.Random(1),
    )


async def test_a_served_candidate_leads_when_chosen_and_stops_when_another_is_preferred(
    client: Client,
) -> None:
    await client.create(DEFINITION)
    clock = FakeClock()
    ours = candidate(client, "a", clock)
    await ours.renew(None)
    told = (await client.get(LEASE_CANDIDATES, "a", "default"))["spec"]
    assert (told["leaseName"], told["binaryVersion"], told["emulationVersion"]) == (
        "lock",
        "1.3.0",
        "1.2.0",
    )
    assert not ours.statistics().is_leader  # nobody was chosen yet
    now = micro_time(clock.time())
    chosen = LeaseRecord(holder="a", duration=15, acquired=now, renewed=now)
    lease = new_lease("default", "lock", chosen)
    lease["spec"]["strategy"] = "OldestEmulationVersion"
    await client.create(lease)
    await clock.advance(1)
    await ours.renew(None)
    assert ours.guard is not None
    assert ours.guard.is_leader
    renewed = (await client.get(LEASES, "lock", "default")).to_dict()
    assert renewed["spec"]["renewTime"] > now
    assert renewed["spec"]["strategy"] == "OldestEmulationVersion"
    renewed["spec"]["preferredHolder"] = "b"
    await client.update(renewed, resource=LEASES)
    await ours.renew(None)
    assert "the server prefers b" in ours.guard.refusal


async def test_a_ping_of_the_server_is_answered_in_the_candidate_of_the_server(
    client: Client,
) -> None:
    await client.create(DEFINITION)
    clock = FakeClock()
    ours = candidate(client, "a", clock)
    await ours.renew(None)
    pinged = (await client.get(LEASE_CANDIDATES, "a", "default")).to_dict()
    pinged["spec"]["pingTime"] = micro_time(clock.time() + 60)
    before = await client.update(pinged, resource=LEASE_CANDIDATES)
    await ours.renew(None)
    answered = await client.get(LEASE_CANDIDATES, "a", "default")
    assert answered.resource_version != before.resource_version
    assert answered["spec"]["renewTime"] >= answered["spec"]["pingTime"]
