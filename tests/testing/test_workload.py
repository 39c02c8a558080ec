import json
from collections import Counter

from listwatch.objects import Object
from listwatch.testing.workload import ActionType, PodGenerator, PodWorkload


def _size(pod: object) -> int:
    return len(json.dumps(pod, separators=(",", ":"), ensure_ascii=False).encode())


def test_pods_are_about_eight_kilobytes_with_managed_fields_status_volumes_and_environment() -> (
    None
):
    generator = PodGenerator()
    pods = [generator.pod(number) for number in range(100)]
    sizes = [_size(pod) for pod in pods]
    assert min(sizes) > 8_000
    assert max(sizes) < 9_500
    fields = pods[7]["metadata"]["managedFields"]
    assert 0.15 < _size(fields) / sizes[7] < 0.3
    assert len({(p["metadata"]["namespace"], p["metadata"]["name"]) for p in pods}) == 100
    assert Object.from_dict(pods[7]).namespace == "team-7"
    assert len(pods[7]["spec"]["containers"]) == 2
    assert pods[7]["status"]["phase"] == "Running"
    assert "ownerReferences" not in pods[7]["metadata"]
    owned = PodGenerator(owned=True).pod(7)
    assert owned["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"


def test_one_seed_makes_the_same_pods_and_changes_every_time() -> None:
    def story(seed: int) -> list[tuple[str, str]]:
        workload = PodWorkload(20, seed=seed)
        actions = [*workload.populate(), *workload.changes(100)]
        return [(action.type, json.dumps(action.body)) for action in actions]

    assert story(3) == story(3)
    assert story(3) != story(4)


def test_changes_are_possible_in_their_order_and_of_every_kind() -> None:
    workload = PodWorkload(100, seed=5)
    alive: set[str] = set()
    gone: set[str] = set()
    brought_back = 0
    counts: Counter[ActionType] = Counter()
    for action in [*workload.populate(), *workload.changes(2000)]:
        counts[action.type] += 1
        if action.type is ActionType.CREATE:
            assert action.key not in alive
            brought_back += action.key in gone
            alive.add(action.key)
        else:
            assert action.key in alive
            if action.type is ActionType.DELETE:
                alive.remove(action.key)
                gone.add(action.key)
    assert sum(counts.values()) == 2100
    assert counts[ActionType.UPDATE] > 1000
    assert counts[ActionType.DELETE] > 200
    assert brought_back > 100
    assert 85 <= len(alive) <= 111


def test_a_change_touches_status_and_leaves_the_given_pod_as_it_was() -> None:
    generator = PodGenerator()
    pod = generator.pod(1)
    before = json.dumps(pod)
    changed = generator.changed(pod)
    assert json.dumps(pod) == before
    assert changed["spec"] == pod["spec"]
    assert changed["metadata"]["annotations"] != pod["metadata"]["annotations"]
