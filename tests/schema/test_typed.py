import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.schema.facts import facts
from listwatch.schema.typed import (
    Conversion,
    WrongTypeError,
    canonical_quantity,
    canonical_time,
)


@pytest.mark.parametrize(
    ("given_text", "canonical"),
    [
        ("1", "1"),
        ("0", "0"),
        (0.5, "500m"),
        (2, "2"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("1000k", "1M"),
        ("1e3", "1e3"),
        ("128974848", "128974848"),
        ("100n", "100n"),
        ("-1", "-1"),
    ],
)
def test_quantities_are_written_canonically(given_text: str | float, canonical: str) -> None:
    assert canonical_quantity(given_text) == canonical


@pytest.mark.parametrize("text", ["", "one", "1Qi", "1.2.3", "Mi", "1 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(WrongTypeError):
        canonical_quantity(text)


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "m", "k", "Ki", "Mi", "G"]))
def test_a_canonical_quantity_stays_as_it_is(number: int, suffix: str) -> None:
    canonical = canonical_quantity(f"{number}{suffix}")
    assert canonical_quantity(canonical) == canonical


def test_times_are_written_in_utc() -> None:
    assert canonical_time("2024-01-02T03:04:05+02:00", micro=False) == "2024-01-02T01:04:05Z"
    assert (
        canonical_time("2024-01-02T03:04:05.123456Z", micro=True) == "2024-01-02T03:04:05.123456Z"
    )
    with pytest.raises(WrongTypeError, match="month out of range"):
        canonical_time("2024-13-02T03:04:05Z", micro=False)


def test_a_pod_is_converted_as_go_types_do_it() -> None:
    """Nulls, empty values and unknown fields are dropped; pointers and required fields stay."""
    conversion = Conversion()
    pod = conversion.convert(
        {
            "metadata": {"name": "a", "labels": {}, "generation": 0, "nope": 1},
            "spec": {
                "hostNetwork": False,
                "nodeName": "",
                "runtimeClassName": "",
                "securityContext": {},
                "terminationGracePeriodSeconds": 0,
                "volumes": [],
                "containers": [
                    {"name": "c", "image": None, "resources": {"limits": {"cpu": "1000m"}}, "x": 2}
                ],
            },
        },
        facts().schema("", "v1", "Pod"),
    )
    assert pod == {
        "metadata": {"name": "a"},
        "spec": {
            "runtimeClassName": "",
            "securityContext": {},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}],
        },
    }
    assert conversion.problems == [
        'unknown field "metadata.nope"',
        'unknown field "spec.containers[0].x"',
    ]


def test_a_wrong_type_deep_inside_is_named_with_its_path() -> None:
    with pytest.raises(WrongTypeError) as refused:
        Conversion().convert(
            {"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}},
            facts().schema("", "v1", "Pod"),
        )
    assert str(refused.value) == (
        "json: cannot unmarshal string into Go struct field "
        "ContainerPort.spec.containers.ports.containerPort of type int32"
    )


def test_an_empty_string_stays_where_go_writes_it_and_goes_where_a_default_comes() -> None:
    pod = {"spec": {"containers": [{"name": "", "ports": [{"protocol": ""}]}]}}
    made = Conversion().convert(pod, facts().schema("", "v1", "Pod"))
    assert made == {"spec": {"containers": [{"name": "", "ports": [{}]}]}}
