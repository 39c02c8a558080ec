"""What is done when the pod of a build, or a build, was deleted."""

import contextlib
import logging
from datetime import datetime
from typing import Any

from listwatch.clock import Clock
from listwatch.controllers.builds.api import BuildsAPI
from listwatch.controllers.builds.naming import (
    BUILD_POD_DELETED,
    BUILD_POD_DELETED_MESSAGE,
    belongs_to,
    build_name_of,
    build_pod_name,
    build_uid_of,
    facts,
)
from listwatch.controllers.recorder import Recorder
from listwatch.objects import Object
from listwatch.runtime.api_time import api_time

_logger = logging.getLogger(__name__)


class BuildPodDeleteController:
    """Ends builds whose pod was deleted before they completed, with the phase Error.

    Args:
        api: reads and writes builds, reads pods.
        recorder: gets an event for each build that failed.
        clock: dates the end.
    """

    def __init__(
        self, api: BuildsAPI, recorder: Recorder | None = None, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._clock = clock or Clock()

    async def handle_build_pod_deletion(self, pod: Object) -> None:
        """Give the build of a deleted pod its end, unless it has one or will get it elsewhere.

        Nothing happens for a build that is complete, cancelled (its own controller ends it) or a
        pipeline, for one that is younger than the pod, and for one that has got a pod again.

        Raises:
            Whatever the API raises; conflicts have been tried again before.
        """
        name = build_name_of(pod)
        if not name:
            return
        build = await self._api.get_build(pod.namespace, name)
        if build is None or not belongs_to(pod, build) or not _can_fail(build):
            return
        present = await self._api.get_pod(pod.namespace, build_pod_name(build))
        if present is not None and belongs_to(present, build):
            return
        written = await self._api.change_build(
            build.namespace, build.name, lambda value: self._fail(value, build.uid)
        )
        if written is not None:
            _logger.info("build %s failed: its pod %s was deleted", build.key, pod.name)
            if self._recorder is not None:
                self._recorder.event(written, "Normal", "BuildFailed", f"Build {build.key} failed")

    def _fail(self, build: dict[str, Any], uid: str) -> bool:
        now = Object.from_dict(build)
        if now.uid != uid or not _can_fail(now):
            return False
        end = api_time(self._clock.time())
        status = build["status"] = build.get("status") or {}
        status["phase"] = "Error"
        status["reason"] = BUILD_POD_DELETED
        status["message"] = BUILD_POD_DELETED_MESSAGE
        status["completionTimestamp"] = end
        if (started := status.get("startTimestamp")) is not None:
            # Whoever wrote a start that is no time gets no duration; the build ends all the same.
            with contextlib.suppress(ValueError, TypeError):
                status["duration"] = _nanoseconds(started, end)
        return True


def _can_fail(build: Object) -> bool:
    known = facts(build)
    return not (known.is_complete or known.cancelled or known.pipeline)


def _nanoseconds(start: str, end: str) -> int:
    """Return the time between two RFC 3339 times in whole seconds, as Go's Duration."""
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return max(0, int(seconds)) * 1_000_000_000


class BuildDeleteController:
    """Deletes the pods of builds that were deleted.

    Args:
        api: reads builds, reads and deletes pods.
    """

    def __init__(self, api: BuildsAPI) -> None:
        self._api = api

    async def handle_build_deletion(self, build: Object) -> None:
        """Delete the pod of a deleted build, and never the pod of one that has its name now.

        Raises:
            Whatever the API raises.
        """
        if facts(build).pipeline:
            return
        pod = await self._api.get_pod(build.namespace, build_pod_name(build))
        if pod is None or build_name_of(pod) != build.name:
            return
        present = await self._api.get_build(build.namespace, build.name)
        if present is not None and belongs_to(pod, present):
            return
        if (uid := build_uid_of(pod)) and build.uid and uid != build.uid:
            return
        if await self._api.delete_pod(pod.namespace, pod.name, pod.uid):
            _logger.info("pod %s deleted: its build %s is gone", pod.key, build.name)
