"""Old revisions that a workload deletes."""

from typing import Any

import pytest

from listwatch.apiserver.workloads.revisions import forget_old


def revision(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


@pytest.mark.parametrize(("limit", "forgotten"), [(-1, 0), (0, 2), (1, 1), (5, 0)])
def test_as_many_idle_revisions_stay_as_the_limit_says(limit: int, forgotten: int) -> None:
    steps = forget_old([revision("a"), revision("b"), revision("live")], ["live"], limit)
    assert len(steps) == forgotten
