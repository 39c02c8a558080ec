"""The controller that type-checks policies and writes the result to their status."""

import asyncio
import logging
from collections.abc import Callable

from listwatch.apiserver.admission.matching import Cluster
from listwatch.apiserver.admission.validation import LONG
from listwatch.apiserver.kinds.kind import Object
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry, Storage, StoredChange

_log = logging.getLogger(__name__)

_POLICIES = ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
_MANAGER = "validatingadmissionpolicy-status"


class PolicyStatus:
    """Writes `observedGeneration` and `typeChecking` of ValidatingAdmissionPolicies.

    For the store's event loop.

    Args:
        registry: used to write.
        store: contains the policies; only their changes are followed.
        cluster: knows the served kinds.
    """

    def __init__(self, registry: Registry, store: Storage, cluster: Cluster) -> None:
        self._registry = registry
        self._bucket = store.bucket(f"{_POLICIES[0]}/{_POLICIES[2]}")
        self._cluster = cluster
        self._due = self._running = False
        self._long: asyncio.Task[None] | None = None
        self._bucket.observers.append(self._on_change)

    def start(self) -> None:
        """Start with all existing policies, then follow every change."""
        self._running = True
        if self._bucket.entries:
            self._plan()

    async def stop(self) -> None:
        """Stop working."""
        self._running = False
        long, self._long = self._long, None
        if long is not None:
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)  # it has logged its exception

    def _on_change(self, _: StoredChange) -> None:
        if self._running:
            self._plan()

    def _plan(self) -> None:
        # not at once: all listeners must see a change before the next one
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        self._due = False
        if not self._running:
            return
        for entry in self._bucket.current():
            try:
                if not self._is_checked(entry):
                    self._check(entry)
            except Exception:  # noqa: BLE001 - logged; one policy must not end the others
                _log.exception("the policy %s can't be checked", entry.name)

    def _is_checked(self, entry: Entry) -> bool:
        policy = self._registry.decode(entry)
        seen: int = (policy.get("status") or {}).get("observedGeneration", 0)
        return bool(policy["metadata"].get("generation", 0) <= seen)

    def _check(self, entry: Entry) -> None:
        # loads a parser that only policies need
        from listwatch.apiserver.admission.type_checking import TypeCheck  # noqa: PLC0415

        check = TypeCheck(self._registry.decode(entry), self._cluster)
        if len(entry.data) <= LONG:
            self._write(entry, check.warnings())
        elif self._long is None:
            # one at a time, referenced until it ends or `stop` ends it
            self._long = asyncio.create_task(self._check_long(entry, check.warnings))

    async def _check_long(self, entry: Entry, check: Callable[[], list[dict[str, str]]]) -> None:
        """Run a check in a thread if it would block the event loop, then look for more."""
        try:
            warnings = await asyncio.to_thread(check)
            if self._bucket.entries.get(entry.key) is entry:
                self._write(entry, warnings)
        except Exception:  # noqa: BLE001 - as above; checked again at the next change
            _log.exception("the policy %s can't be checked", entry.name)
        else:
            if self._running:
                self._plan()
        finally:
            self._long = None

    def _write(self, entry: Entry, warnings: list[dict[str, str]]) -> None:
        def produce(old: Object | None, _: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update has refused a missing object
            status = old.setdefault("status", {})
            status["observedGeneration"] = old["metadata"].get("generation", 0)
            status["typeChecking"] = {"expressionWarnings": warnings} if warnings else {}
            return old

        context = WriteContext(manager=_MANAGER, subresource="status", operation="Apply")
        resource = self._cluster.resource(*_POLICIES)
        if resource is not None:
            self._registry.update(resource, "", entry.name, produce, context, is_put=False)
