from typing import Any

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.errors import AlreadyExistsError, ConflictError, NotFoundError
from listwatch.objects import Object
from listwatch.runtime.api_time import api_time, micro_time
from listwatch.runtime.lease import ClientLeases, LeaseFormatError, LeaseRecord, new_lease

RECORD = LeaseRecord(
    holder="a",
    duration=15,
    acquired="2026-01-01T00:00:00.000000Z",
    renewed="2026-01-01T00:00:02.000000Z",
    transitions=3,
)


def lease(spec: Any) -> Object:
    return Object.from_dict({"kind": "Lease", "metadata": {"name": "x"}, "spec": spec})


def test_a_record_comes_back_as_it_was_written() -> None:
    assert LeaseRecord.of(Object.from_dict(new_lease("ns", "x", RECORD))) == RECORD


def test_an_empty_record_leaves_no_empty_fields_behind() -> None:
    full = new_lease("ns", "x", RECORD)
    assert LeaseRecord().into(full)["spec"] == {"leaseDurationSeconds": 0, "leaseTransitions": 0}


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseTransitions": None}])
def test_absent_fields_and_nulls_are_an_empty_record(spec: Any) -> None:
    assert LeaseRecord.of(lease(spec)) == LeaseRecord()


@pytest.mark.parametrize("spec", [{"holderIdentity": 3}, {"leaseDurationSeconds": "15"}])
def test_a_malformed_lease_is_a_clear_error(spec: Any) -> None:
    with pytest.raises(LeaseFormatError, match="Lease x is malformed"):
        LeaseRecord.of(lease(spec))


async def test_a_client_reads_and_writes_leases(server: EmbeddedAPIServer, client: Client) -> None:
    del server
    leases = ClientLeases(client, "default")
    with pytest.raises(NotFoundError):
        await leases.get("x")
    made = await leases.create(new_lease("default", "x", RECORD, {"group": "g"}))
    with pytest.raises(AlreadyExistsError):
        await leases.create(new_lease("default", "x", RECORD))
    assert LeaseRecord.of(await leases.get("x")) == RECORD
    changed = await leases.update(LeaseRecord(holder="b", duration=1).into(made.to_dict()))
    with pytest.raises(ConflictError):
        await leases.update(made.to_dict())
    assert [found.name for found in await leases.list("group=g")] == ["x"]
    assert list(await leases.list("group=other")) == []
    with pytest.raises(ConflictError):
        await leases.delete("x", resource_version=made.resource_version)
    await leases.delete("x", resource_version=changed.resource_version)
    assert list(await leases.list("group=g")) == []


def test_times_are_written_as_a_server_writes_them() -> None:
    assert micro_time(1_700_000_000.5) == "2023-11-14T22:13:20.500000Z"
    assert api_time(1_700_000_000.5) == "2023-11-14T22:13:20Z"
