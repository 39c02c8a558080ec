"""The rotation of certificates: no certificate serves that a published bundle does not trust.

The replicas are the real `Upkeep`, `SecretSource` and `Rotation`; the Secret and the configurations
are fakes that stop at every request, so that anything may happen between two requests.
"""

import itertools
import types
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, cast

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from listwatch.clock import FakeClock
from listwatch.errors import AlreadyExistsError, ConflictError, NotFoundError
from listwatch.webhooks.certificates import EARLIER, LIFETIME, Authority, ServingCertificate
from listwatch.webhooks.rotation import SETTLE, Bundle, Rotation, Stored
from listwatch.webhooks.secret import ReadSecret
from listwatch.webhooks.upkeep import SecretSource, Upkeep

DAY = 24 * 3600.0
NAMES = ("hooks.default.svc",)


@types.coroutine
def request() -> Generator[None]:
    """Stop until the test continues."""
    yield


class Wanted(msgspec.Struct):
    creates: bool = True


class Read(msgspec.Struct):
    """What a replica read: bundles and versions by configuration."""

    configurations: dict[str, tuple[int, tuple[Authority, ...]]]

    def bundles(self, _: object) -> list[Bundle]:
        return [bundle for _, bundle in self.configurations.values()]


class Cluster:
    """A Secret and configurations that are written only in the version that was read."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.versions = itertools.count(1)
        self.serials = itertools.count(1)
        self.secret: tuple[int, Stored] | None = None
        self.configurations: dict[str, tuple[int, tuple[Authority, ...]]] = {}
        #: What a registrar creates; a definition appears by itself.
        self.names = ["validating", "mutating"]
        self.wanted = Wanted()

    def make(self, time: float, names: tuple[str, ...] = NAMES) -> ServingCertificate:
        number = b"%d" % next(self.serials)
        authority = Authority(b"authority " + number, time + LIFETIME)
        begins = time - EARLIER
        return ServingCertificate(number, b"key", authority, names, begins, time + LIFETIME)

    # --- as a registrar ---

    async def read(self) -> Read:
        await request()
        return Read(dict(self.configurations))

    async def publish(self, published: Read, authorities: Iterable[Authority]) -> int:
        bundle, changes = tuple(authorities), 0
        for name in [*self.names, *(self.configurations.keys() - set(self.names))]:
            before = published.configurations.get(name)
            if before is not None and before[1] == bundle:
                continue
            await request()
            now = self.configurations.get(name)
            if before is None and now is not None:
                raise AlreadyExistsError(name)
            if now is not None and before is not None and now[0] != before[0]:
                raise ConflictError(name)
            if before is None and name not in self.names:
                continue  # it appeared after the read
            self.configurations[name] = (next(self.versions), bundle)
            changes += 1
        return changes


class Store:
    """The Secret as a `SecretStore`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def read(self) -> ReadSecret:
        await request()
        found = self.cluster.secret
        if found is None:
            return ReadSecret(None, None)
        return ReadSecret(cast("Any", found[0]), found[1])

    async def write(self, before: ReadSecret, stored: Stored) -> None:
        await request()
        found = self.cluster.secret
        if before.obj is None and found is not None:
            raise AlreadyExistsError("secret")
        if before.obj is not None and found is None:
            raise NotFoundError("secret")
        if before.obj is not None and found is not None and found[0] != cast("Any", before.obj):
            raise ConflictError("secret")
        if found is not None and found[1].serving != stored.serving:
            # A replica that starts now must be able to serve at once.
            bundles = [bundle for _, bundle in self.cluster.configurations.values() if bundle]
            assert all(stored.serving.authority in bundle for bundle in bundles)
        self.cluster.secret = (next(self.cluster.versions), stored)


class Replica:
    """One replica, which takes one request at a time."""

    def __init__(self, cluster: Cluster, names: tuple[str, ...] = NAMES) -> None:
        self.cluster = cluster
        self.rotation = Rotation(names, lambda time: cluster.make(time, names))
        self.source = SecretSource(cast("Any", Store(cluster)), self.rotation, cluster.clock)
        self.upkeep = Upkeep(self.source, cast("Any", cluster), lambda _: None, clock=cluster.clock)
        self.look: Coroutine[Any, Any, bool] | None = None
        #: It may have read that nothing is published.
        self.is_unaware = True

    @property
    def serving(self) -> ServingCertificate | None:
        return self.upkeep.certificate

    def step(self) -> bool:
        """Go on to the next request; return whether a look has ended with nothing to do."""
        if self.look is None:
            self.is_unaware = not self.cluster.configurations
            self.look = self.upkeep._look()
        try:
            self.look.send(None)
        except StopIteration as end:
            self.look = None
            return bool(end.value)
        except (ConflictError, NotFoundError):
            self.look = None
        return False

    def finish(self) -> None:
        """Look until there is nothing to do."""
        for _ in range(200):
            if self.step() and self.look is None:
                return
        raise AssertionError("it never comes to rest")

    def close(self) -> None:
        if self.look is not None:
            self.look.close()


REPLICAS = st.integers(0, 1)


class TwoReplicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.cluster = Cluster(self.clock)
        self.replicas = [Replica(self.cluster), Replica(self.cluster)]

    @initialize(fresh=st.booleans())
    def begin(self, *, fresh: bool) -> None:
        """Most stories begin while everything works."""
        if not fresh:
            self.replicas[0].upkeep.lead(leads=True)
            rested(*self.replicas)

    @rule(which=REPLICAS, part=st.sampled_from([1 / 4, 2 / 3]))
    def renew(self, which: int, part: float) -> None:
        """Let much time pass, and one replica do what is due, up to some request."""
        self.clock.stall(part * LIFETIME)
        self.go_on(which, 12)

    @rule(which=REPLICAS)
    def settle(self, which: int) -> None:
        self.replicas[which].finish()
        self.clock.stall(SETTLE + 1)
        self.replicas[which].finish()

    @rule(which=REPLICAS, steps=st.integers(1, 12))
    def go_on(self, which: int, steps: int) -> None:
        for _ in range(steps):
            self.replicas[which].step()
            self.nothing_serves_that_is_not_trusted()

    @rule(which=REPLICAS)
    def come_to_rest(self, which: int) -> None:
        self.replicas[which].finish()

    @rule(which=REPLICAS, leads=st.booleans())
    def win_or_lose_the_lease(self, which: int, *, leads: bool) -> None:
        # Two replicas may both think that they have it.
        self.replicas[which].upkeep.lead(leads=leads)

    @rule(which=REPLICAS)
    def crash(self, which: int) -> None:
        self.replicas[which].close()
        self.replicas[which] = Replica(self.cluster)

    @rule(seconds=st.sampled_from([1.0, SETTLE + 1, 10 * DAY]))
    def time_passes(self, seconds: float) -> None:
        self.clock.stall(seconds)

    @precondition(
        lambda self: (
            self.cluster.configurations and not any(replica.is_unaware for replica in self.replicas)
        )
    )
    @rule()
    def somebody_deletes_the_secret(self) -> None:
        self.cluster.secret = None

    @precondition(lambda self: "definition" not in self.cluster.configurations)
    @rule()
    def a_definition_appears(self) -> None:
        self.cluster.configurations["definition"] = (next(self.cluster.versions), ())

    @invariant()
    def nothing_serves_that_is_not_trusted(self) -> None:
        for replica in self.replicas:
            serving = replica.serving
            if serving is None or serving.not_after <= self.clock.time():
                continue
            for name, (_, bundle) in self.cluster.configurations.items():
                # An empty bundle was never published.
                assert not bundle or serving.authority in bundle, name

    def teardown(self) -> None:
        """In the end every replica serves one valid certificate, trusted everywhere."""
        for replica in self.replicas:
            replica.upkeep.lead(leads=replica is self.replicas[0])
        for _ in range(4):
            for replica in self.replicas:
                replica.finish()
            self.clock.stall(SETTLE + 1)
        assert self.cluster.secret is not None
        wanted = self.cluster.secret[1].serving
        assert wanted.not_after - self.clock.time() > LIFETIME / 4
        assert [replica.serving for replica in self.replicas] == [wanted, wanted]
        assert set(self.cluster.configurations) >= {"validating", "mutating"}
        for _, bundle in self.cluster.configurations.values():
            assert wanted.authority in bundle
        for replica in self.replicas:
            replica.close()


TestTwoReplicas = TwoReplicas.TestCase


def rested(*replicas: Replica) -> None:
    for replica in replicas:
        replica.finish()


def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left() -> None:
    clock = FakeClock()
    cluster = Cluster(clock)
    one = Replica(cluster)
    one.upkeep.lead(leads=True)
    one.finish()
    first = one.serving
    assert first is not None
    clock.stall(LIFETIME * 2 / 3 - 1)
    one.finish()
    assert one.serving == first
    clock.stall(2)
    one.finish()
    # Both authorities are published, and the old certificate still serves.
    assert one.serving == first
    (_, bundle) = cluster.configurations["validating"]
    assert [authority.pem for authority in bundle] == [b"authority 1", b"authority 2"]
    clock.stall(SETTLE)
    one.finish()
    assert one.serving is not None
    assert one.serving.certificate == b"2"
    # The old authority stays until it has expired: another replica may be slow.
    assert cluster.configurations["validating"][1] == (one.serving.authority, first.authority)
    clock.stall(LIFETIME / 3)
    one.finish()
    assert len(cluster.configurations["validating"][1]) == 1


def test_a_replica_without_the_lease_follows_and_publishes_nothing() -> None:
    clock = FakeClock()
    cluster = Cluster(clock)
    leader, other = Replica(cluster), Replica(cluster)
    rested(other)
    assert cluster.configurations == {}
    assert other.serving is not None
    leader.upkeep.lead(leads=True)
    rested(leader, other)
    assert leader.serving == other.serving
    assert other.upkeep.registered.is_set()


def test_a_certificate_for_other_names_is_replaced_without_a_gap() -> None:
    clock = FakeClock()
    cluster = Cluster(clock)
    old, new = Replica(cluster), Replica(cluster, ("other.default.svc",))
    old.upkeep.lead(leads=True)
    rested(old)
    old.upkeep.lead(leads=False)
    new.upkeep.lead(leads=True)
    rested(new, old)
    assert new.serving == old.serving
    clock.stall(SETTLE)
    rested(new, old)
    assert new.serving is not None
    assert new.serving.names == ("other.default.svc",)


def test_after_the_secret_s_loss_the_certificate_that_serves_is_stored_again() -> None:
    clock = FakeClock()
    cluster = Cluster(clock)
    one = Replica(cluster)
    one.upkeep.lead(leads=True)
    one.finish()
    cluster.secret = None
    one.finish()
    assert cluster.secret == (4, Stored(cast("Any", one.serving)))


def test_an_expired_certificate_is_replaced_as_soon_as_bundles_allow() -> None:
    clock = FakeClock()
    cluster = Cluster(clock)
    one = Replica(cluster)
    one.upkeep.lead(leads=True)
    one.finish()
    clock.stall(LIFETIME + 1)
    one.finish()
    assert one.serving is not None
    assert one.serving.certificate == b"2"
