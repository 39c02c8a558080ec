"""Plant one defect at a time in a copy of the tree, and check that the tests find each.

Usage: python tools/plant_defects.py [NAME ...]

Each defect replaces one piece of text, which must occur once. If that text has changed, the run
fails: adapt the entry. Exit code 1 if the tests pass with a defect.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
#: Number of copies of the tree, each with one defect at a time.
COPIES: Final = 2
#: Seconds for the tests of one defect, which may make them hang.
LIMIT: Final = 240


class Defect(NamedTuple):
    """One change that breaks the product.

    Attributes:
        name: what it breaks.
        file: below src/listwatch.
        old: the text to replace; occurs once.
        new: the replacement.
        tests: below tests; at least one of them must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


DEFECTS: Final = (
    # --- the writer of the cache ---
    Defect(
        "another uid under a key is told as an update",
        "cache/writer.py",
        "elif old.meta.uid != meta.uid:",
        "elif False:",
        "cache/test_writer.py",
    ),
    Defect(
        "a relist tells of no deletions",
        "cache/writer.py",
        "            if now is None or now.meta.uid != gone.meta.uid:",
        "            if now is not None and now.meta.uid != gone.meta.uid:",
        "cache/test_writer.py",
    ),
    Defect(
        "a deletion nobody was told an addition of is told",
        "cache/writer.py",
        (
            "if (old := remove(key)) is not None:\n"
            "                        emit(Deleted(_gone(key, old, item)))"
        ),
        "old = remove(key)\n                    emit(Deleted(_gone(key, old or item, item)))",
        "cache/test_writer.py",
    ),
    Defect(
        "who waits for a version waits for the one after it",
        "cache/writer.py",
        "self._heap[0][0] <= reached",
        "self._heap[0][0] < reached",
        "cache/test_writer.py cache/test_shared_informer.py",
    ),
    # --- the store ---
    Defect(
        "an object stays in the index bucket that it has left",
        "cache/store.py",
        "            del bucket[key]\n",
        "            pass\n",
        "cache/test_store.py",
    ),
    Defect(
        "an empty index bucket stays",
        "cache/store.py",
        "            del self.buckets[value]",
        "            bucket.clear()",
        "cache/test_store.py",
    ),
    Defect(
        "a relist replaces objects that are the same",
        "cache/store.py",
        "items[key] = old if old is not None and _is_same(old.meta, obj.meta) else obj",
        "items[key] = obj",
        "cache/test_store.py",
    ),
    # --- the queues ---
    Defect(
        "failed deltas come back behind newer ones",
        "cache/ordered_fifo.py",
        "self._items.extendleft(reversed(batch))",
        "self._items.extend(batch)",
        "cache/test_ordered_fifo.py",
    ),
    Defect(
        "of two deltas of a key in one batch the first is lost",
        "cache/ordered_fifo.py",
        "if key in by_key or not key:",
        "if not key:",
        "cache/test_ordered_fifo.py",
    ),
    Defect(
        "a queue has synced before its first list is processed",
        "cache/ordered_fifo.py",
        "        return not self._untouched and not self._initial\n",
        "        return not self._untouched\n",
        "cache/test_ordered_fifo.py",
    ),
    Defect(
        "a tombstone hides the last state that came after it",
        "cache/delta_fifo.py",
        "            deltas[-1] = delta\n",
        "            pass\n",
        "cache/test_delta_fifo.py cache/test_delta_fifo_replace.py",
    ),
    Defect(
        "a list tells of a deletion that is queued already",
        "cache/delta_fifo.py",
        (
            "            if delta.type is not _DELETED:\n"
            "                self._queue_tombstone(key, delta.object, initial=initial)"
        ),
        (
            "            if True:\n"
            "                self._queue_tombstone(key, delta.object, initial=initial)"
        ),
        "cache/test_delta_fifo.py cache/test_delta_fifo_replace.py cache/test_queue_model.py",
    ),
    Defect(
        "a resync queues what is queued",
        "cache/delta_fifo.py",
        "            if key not in self._in_process and self._queued(key) is None:",
        "            if key not in self._in_process:",
        "cache/test_delta_fifo_replace.py",
    ),
    Defect(
        "two workers get one key",
        "cache/delta_fifo.py",
        (
            "            if key in in_process:\n"
            "                self._behind[key] = deltas\n"
            "                continue\n"
            "            in_process[key] = deltas\n"
            "            self._pops += 1"
        ),
        "            in_process[key] = deltas\n            self._pops += 1",
        "cache/test_delta_fifo_process.py cache/test_queue_model.py",
    ),
    Defect(
        "an object that came and went while a handler was slow is told as deleted",
        "cache/pending.py",
        "case (), _, _:\n            return ()\n",
        "case (), _, _:\n            return (then,)\n",
        "cache/test_pending.py",
    ),
    Defect(
        "a merged update has an old that was never told",
        "cache/pending.py",
        "Updated(first.old, then.new,",
        "Updated(then.old, then.new,",
        "cache/test_pending.py",
    ),
    Defect(
        "a deletion is compressed away though the consumer knows the object",
        "cache/event_queue.py",
        "if not kinds and self._consumer_knows(deltas.key):",
        "if False:",
        "cache/test_event_queue.py",
    ),
    # --- the reflector ---
    Defect(
        "a server that was set back is not noticed",
        "cache/reflector_machine.py",
        "set_back = is_older(version, state.resource_version)",
        "set_back = False",
        "cache/test_reflector_machine.py",
    ),
    Defect(
        "versions are compared as texts",
        "cache/reflector_machine.py",
        "return (len(version), version) < (len(than), than)",
        "return version < than",
        "cache/test_reflector_machine.py",
    ),
    Defect(
        "waits do not grow",
        "cache/reflector_machine.py",
        "failures=state.failures + 1), wait",
        "failures=state.failures), wait",
        "cache/test_reflector_machine.py",
    ),
    Defect(
        "a watch that lost an event goes on",
        "cache/reflector_machine.py",
        "if ended.stale or state.resource_version in NO_POSITION:",
        "if state.resource_version in NO_POSITION:",
        "cache/test_reflector_machine.py",
    ),
    Defect(
        "an expired watch is answered by lists without a wait",
        "cache/reflector_machine.py",
        (
            "if ended.fault is RequestFault.EXPIRED and not state.acted:\n"
            "        return _enter(replace(state, acted=True), _relist_phase(state))"
        ),
        (
            "if ended.fault is RequestFault.EXPIRED:\n"
            "        return _enter(replace(state, acted=True), _relist_phase(state))"
        ),
        "cache/test_reflector_machine.py cache/test_reflector_rates.py",
    ),
    Defect(
        "a body that was cut short passes for a list",
        "cache/frames.py",
        "        if self._head:\n            self._refuse_second_items(body, items)",
        "        if False:\n            self._refuse_second_items(body, items)",
        "cache/test_list_frames.py",
    ),
    Defect(
        "an item may be followed by anything",
        "cache/frames.py",
        "            if pending[after] != _COMMA:",
        "            if False:",
        "cache/test_list_frames.py",
    ),
    Defect(
        "a watch takes objects of another kind",
        "cache/watch_frames.py",
        "return self._expected is None or self._expected.is_kind(obj.kind, obj.api_version)",
        "return True",
        "cache/test_watch_frames.py",
    ),
    # --- the work queues ---
    Defect(
        "a key that was added while it was in process is lost",
        "workqueue/work_queue.py",
        (
            "        if item in self._dirty:\n"
            "            self._push(item)\n"
            "            if self._getters:"
        ),
        "        if False:\n            self._push(item)\n            if self._getters:",
        "workqueue/test_work_queue.py",
    ),
    Defect(
        "two workers get one item",
        "workqueue/work_queue.py",
        "        if item not in self._processing:\n            self._push(item)",
        "        if True:\n            self._push(item)",
        "workqueue/test_work_queue.py",
    ),
    Defect(
        "a cancelled worker takes the wake-up with it",
        "workqueue/work_queue.py",
        (
            "                self._getters.remove(getter)\n"
            "            else:\n"
            "                self._pass_on()"
        ),
        "                self._getters.remove(getter)\n            else:\n                pass",
        "workqueue/test_work_queue.py workqueue/test_work_queue_model.py",
    ),
    Defect(
        "of two waits the later one counts",
        "workqueue/work_queue.py",
        "if known is not None and known[0] <= due:",
        "if known is not None and known[0] >= due:",
        "workqueue/test_work_queue_waiting.py",
    ),
    Defect(
        "the shortest of several limits counts",
        "workqueue/rate_limiters.py",
        "return max([limiter.when(item) for limiter in self._limiters])",
        "return min([limiter.when(item) for limiter in self._limiters])",
        "workqueue/test_rate_limiters.py",
    ),
    Defect(
        "a raised priority does not move a key",
        "workqueue/priority_queue.py",
        "                self._by_priority.move(item)",
        "                pass",
        "workqueue/test_priority_queue.py",
    ),
    Defect(
        "a group of keys saves up turns",
        "workqueue/priority_queue.py",
        "max(served, last.get(group, 0)) + 1",
        "last.get(group, 0) + 1",
        "workqueue/test_priority_queue_groups.py",
    ),
    # --- the client ---
    Defect(
        "a write that may have been done is sent again",
        "client/calls.py",
        "may_repeat = error.code == 429 or (is_safe and error.code >= 500)",
        "may_repeat = error.code == 429 or error.code >= 500",
        "client/test_client.py",
    ),
    Defect(
        "a dry run really deletes",
        "client/calls.py",
        '        options["dryRun"] = ["All"]\n',
        "        pass\n",
        "client/test_client.py client/test_against_apiserver.py",
    ),
    Defect(
        "a token that was refused is not renewed",
        "client/http.py",
        "if response.status == 401 and not retried and await",
        "if False and await",
        "client/test_http.py client/test_auth.py client/test_exec_plugin.py",
    ),
    Defect(
        "a server's words show the credentials",
        "client/http.py",
        'text = text.replace(secret, "<hidden>")',
        "pass",
        "client/test_http.py client/test_hostile.py client/test_auth.py",
    ),
    Defect(
        "an answer may be of any size",
        "client/http.py",
        "                    if size > limit:",
        "                    if False:",
        "client/test_http.py client/test_hostile.py",
    ),
    Defect(
        "a watch is asked for compressed",
        "client/http.py",
        '"gzip" if self._compression and not watch else "identity"',
        '"gzip" if self._compression else "identity"',
        "client/test_http.py client/test_list_watch.py client/test_transport_compression.py",
    ),
    Defect(
        "a connection is used again after half an answer",
        "client/connection_pool.py",
        "if not keep or self.is_closed or not (connection.complete and connection.is_idle):",
        "if not keep or self.is_closed:",
        "client/test_transport_pool.py",
    ),
    Defect(
        "a reader is not held back, and memory grows",
        "client/transport_connection.py",
        "            self._transport.pause_reading()",
        "            pass",
        "client/test_transport.py client/test_http.py client/test_hostile.py",
    ),
    Defect(
        "a bundle forgets what a slow replica still serves",
        "webhooks/rotation.py",
        "return tuple(dict.fromkeys([*wanted, *kept]))",
        "return tuple(dict.fromkeys(wanted))",
        "webhooks/test_rotation.py",
    ),
    Defect(
        "a webhook's function gets all the time that the server waits",
        "webhooks/dispatch.py",
        "return waits - min(_MARGIN_SECONDS, waits * _MARGIN)",
        "return waits",
        "webhooks/test_dispatch.py",
    ),
)


def main() -> int:
    """Try each defect, or the given ones; return the exit code."""
    names = sys.argv[1:]
    defects = [each for each in DEFECTS if not names or each.name in names]
    if unknown := set(names) - {each.name for each in defects}:
        raise SystemExit(f"no such defect: {', '.join(sorted(unknown))}")
    lost = [each for each in defects if text_of(ROOT, each).count(each.old) != 1]
    for each in lost:
        print(f"{each.file}: not there, or more than once, for {each.name!r}:\n{each.old}")
    if lost:
        return 1
    with tempfile.TemporaryDirectory(prefix="defects-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(COPIES):
            copies.put(copy_tree(Path(directory) / str(number)))

        def fails(tests: str, defect: Defect | None = None) -> bool:
            copy = copies.get()
            try:
                return does_fail(copy, tests, defect)
            finally:
                copies.put(copy)

        def is_found(defect: Defect) -> bool:
            found = fails(defect.tests, defect)
            print(f"{'found ' if found else 'MISSED'} {defect.file}: {defect.name}", flush=True)
            return found

        with ThreadPoolExecutor(COPIES) as pool:
            tests = sorted({test for each in defects for test in each.tests.split()})
            red = [
                test for test, failed in zip(tests, pool.map(fails, tests), strict=True) if failed
            ]
            print(f"without a defect fail: {', '.join(red) or 'none'}", flush=True)
            found = list(pool.map(is_found, defects))
    print(f"{sum(found)} of {len(found)} defects were found")
    return 0 if all(found) and not red else 1


def text_of(root: Path, defect: Defect) -> str:
    """Return the text of a defect's file."""
    return (root / "src" / "listwatch" / defect.file).read_text()


def copy_tree(into: Path) -> Path:
    """Copy what the tests need."""
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    into.mkdir()
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, into / name, ignore=left_out)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, into / name)
    return into


def does_fail(copy: Path, tests: str, defect: Defect | None) -> bool:
    """Return whether a test fails, with or without a defect. A hanging test fails too."""
    if defect is None:
        return is_red(copy, tests)
    file = copy / "src" / "listwatch" / defect.file
    whole = file.read_text()
    file.write_text(whole.replace(defect.old, defect.new))
    try:
        return is_red(copy, tests)
    finally:
        file.write_text(whole)


def is_red(copy: Path, tests: str) -> bool:
    """Return whether a test of these files fails."""
    paths = [f"tests/{test}" for test in tests.split()]
    options = ["-q", "-x", "-m", "not proof", "--timeout", "60", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", *options, *paths],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src")},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in {0, 1}:
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout}{done.stderr}")
    return bool(done.returncode)


if __name__ == "__main__":
    sys.exit(main())
