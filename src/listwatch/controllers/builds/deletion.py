"""Handles the deletion of a build's pod, or of a build."""

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
    """Sets builds to phase Error if their pod was deleted before they completed.

    Args:
        api: reads and writes builds, reads pods.
        recorder: gets an event for each build that failed.
        clock: the time at which builds end.
    """

    def __init__(
        self, api: BuildsAPI, recorder: Recorder | None = None, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._clock = clock or Clock()

    async def handle_build_pod_deletion(self, pod: Object) -> None:
        """Set the build of a deleted pod to Error, if that pod's deletion ends it.

        Does nothing for a build that is complete, cancelled (its own controller ends it) or a
        pipeline, for one younger than the pod, and for one that has a pod again.

        Raises:
            Whatever the API raises; conflicts have been retried before.
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
            # A start that is not a time gives no duration; the build ends all the same.
            with contextlib.suppress(ValueError, TypeError):
                status["duration"] = _nanoseconds(started, end)
        return True


def _can_fail(build: Object) -> bool:
    known = facts(build)
    return not (known.is_complete or known.cancelled or known.pipeline)


def _nanoseconds(start: str, end: str) -> int:
    """Return the difference of two RFC 3339 times, in whole seconds, as Go's Duration."""
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return max(0, int(seconds)) * 1_000_000_000


class BuildDeleteController:
    """Deletes the pods of deleted builds.

    Args:
        api: reads builds, reads and deletes pods.
    """

    def __init__(self, api: BuildsAPI) -> None:
        self._api = api

    async def handle_build_deletion(self, build: Object) -> None:
        """Delete the pod of a deleted build, but never that of a successor with the same name.

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
