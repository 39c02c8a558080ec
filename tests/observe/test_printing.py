import pytest

from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.printing import Format, Printer


def _object(kind: str = "Pod", **fields: object) -> Object:
    version = fields.pop("version", "1")
    meta = {"name": "a", "namespace": "ns", "resourceVersion": version, "generation": 3}
    return Object.from_dict({"kind": kind, "apiVersion": "v1", "metadata": meta, **fields})


def _update(kind: str = "Pod") -> Observation:
    old = _object(kind, spec={"image": "1"}, status={"n": 1}, data={"k": "b2xk"})
    new = _object(kind, version="2", spec={"image": "2"}, status={"n": 2}, data={"k": "bmV3"})
    return Observation(ObservationType.UPDATED, "ns/a", new, old=old, resource="pods")


def _print(change: Observation, printer: Printer) -> str:
    return printer.text(change, change.type.plain, "# header\n")


def test_the_fields_that_changed_are_named_without_the_noise_of_every_write() -> None:
    assert _print(_update(), Printer()) == (
        '# header\n    spec.image: "1" → "2"\n    status.n: 1 → 2\n    data.k: "b2xk" → "bmV3"\n'
    )


@pytest.mark.parametrize("pattern", ["status", "status.n", "stat*"])
def test_paths_can_be_ignored(pattern: str) -> None:
    text = _print(_update(), Printer(ignore_paths=[pattern]))
    assert "status" not in text
    assert "spec.image" in text


@pytest.mark.parametrize("printer_format", [Format.HEADERS, Format.DIFF])
def test_the_values_of_secrets_are_never_printed(printer_format: Format) -> None:
    text = _print(_update("Secret"), Printer(printer_format))
    assert "b2xk" not in text
    assert "bmV3" not in text
    assert "image" in text


def test_a_diff_shows_the_lines_that_changed() -> None:
    lines = _print(_update(), Printer(Format.DIFF)).splitlines()
    assert lines[:3] == ["# header", "--- ns/a 1", "+++ ns/a 2"]
    assert "-  image: '1'" in lines
    assert "+  image: '2'" in lines
    gone = Observation(ObservationType.DELETED, "ns/a", _object(), resource="pods")
    assert "-kind: Pod" in _print(gone, Printer(Format.DIFF)).splitlines()


def test_machines_get_nothing_but_their_format() -> None:
    assert _print(_update(), Printer(Format.NAME)) == "pods/ns/a\n"
    text = _print(_update(), Printer(Format.YAML))
    assert text.startswith("# Updated\nkind: Pod\n")
    assert text.endswith("---\n")
    assert "# header" not in _print(_update(), Printer(Format.JSON))


def test_colours_are_only_there_when_asked_for_and_quiet_leaves_the_header_out() -> None:
    assert "\x1b[" not in _print(_update(), Printer())
    assert "\x1b[31m" in _print(_update(), Printer(coloured=True))
    assert "# header" not in _print(_update(), Printer(quiet=True))


def test_long_values_are_shortened() -> None:
    old, new = _object(spec={"x": "y" * 500}), _object(spec={"x": "z" * 500})
    text = _print(Observation(ObservationType.UPDATED, "ns/a", new, old=old), Printer())
    assert max(map(len, text.splitlines())) < 300
    assert "…" in text
