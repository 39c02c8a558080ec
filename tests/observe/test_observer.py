import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from listwatch.clock import FakeClock
from listwatch.errors import (
    BadRequestError,
    ForbiddenError,
    MethodNotSupportedError,
    UnauthorizedError,
)
from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.names import NamesError
from listwatch.observe.observer import ListErrorLimitError
from listwatch.observe.options import DeleteLimit
from listwatch.observe.printing import Format
from listwatch.observe.reaction import ErrorBudget, ErrorLimitError
from listwatch.observe.templates.jsonpath import JSONPathTemplate
from listwatch.observe.templates.template import TemplateError
from listwatch.testing.fake_controller_source import FakeControllerSource, pod
from observe.observing import Observing, observing

ECHO = ("/bin/echo", "got")


def _words(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# ")]


async def test_every_addition_change_and_deletion_runs_its_command(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(
        tmp_path, source, command=ECHO, delete_command=("/bin/echo", "gone")
    ) as state:
        await state.until(lambda: state.observer.synced)
        source.add(pod("b", "ns"))
        source.modify(pod("a", "ns", image="x"))
        source.delete("ns/b")
        await state.until(lambda: "gone" in state.out)
    assert _words(state.out) == ["got ns a", "got ns b", "got ns a", "gone ns b"]
    assert state.headers == [
        "Sync started",
        "Sync 1\t/bin/echo got ns a",
        "Sync ended",
        "Added 2\t/bin/echo got ns b",
        "Updated 3\t/bin/echo got ns a",
        "Deleted 4\t/bin/echo gone ns b",
    ]
    assert state.err == ""


async def test_the_end_of_the_sync_is_told_as_soon_as_its_last_command_has_ended(
    tmp_path: Path,
) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(tmp_path, source, command=("/bin/sh", "-c", "sleep 0.1; echo x")) as state:
        await state.until(lambda: "Sync ended" in state.out)
    assert state.out.index("x\n") < state.out.index("Sync ended")


async def test_once_ends_when_all_present_objects_were_processed(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for number in range(5):
        source.add(pod(f"p{number}", "ns"))
    async with observing(tmp_path, source, command=ECHO, once=True) as state:
        await state.task
    assert _words(state.out) == [f"got ns p{number}" for number in range(5)]
    assert state.headers[-1] == "Sync ended"


async def test_once_says_so_when_there_is_nothing(tmp_path: Path) -> None:
    async with observing(tmp_path, once=True) as state:
        await state.task
    assert state.err == "Nothing to sync, exiting immediately\n"


async def test_once_names_the_names_that_nothing_has(tmp_path: Path) -> None:
    async with observing(tmp_path, once=True, names=("127.0.0.1:0", "b")) as state:
        await state.task
    words = "Nothing to sync (nothing is named 127.0.0.1:0, b), exiting immediately\n"
    assert state.err == words


async def test_exit_after_ends_and_says_so(tmp_path: Path) -> None:
    async with observing(tmp_path, exit_after=0.05, exit_after_text="50ms") as state:
        await state.task
    assert state.err == "Shutting down after 50ms ...\n"


async def test_a_cluster_scoped_object_is_named_without_a_namespace(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("node-1"))
    async with observing(tmp_path, source, command=ECHO, once=True, in_namespaces=False) as state:
        await state.task
    assert _words(state.out) == ["got node-1"]


async def test_the_template_makes_one_more_argument_also_of_what_is_deleted(
    tmp_path: Path,
) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", ip="10.0.0.1 x"))
    template = JSONPathTemplate("{.spec.ip}")
    async with observing(
        tmp_path, source, command=ECHO, delete_command=ECHO, template=template
    ) as state:
        await state.until(lambda: state.observer.synced)
        source.delete("ns/a")
        await state.until(lambda: "Deleted" in state.out and len(_words(state.out)) == 2)
    assert _words(state.out) == ["got ns a 10.0.0.1 x"] * 2
    assert 'got ns a "10.0.0.1 x"' in state.headers[1]


async def test_a_template_that_does_not_fit_an_object_is_a_failed_run_of_it(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    source.add(pod("b", "ns", image="x"))
    template = JSONPathTemplate("{.spec.image}", allow_missing_keys=False)
    source.add(pod("c", "ns"))
    async with observing(tmp_path, source, template=template, command=ECHO) as state:
        await state.until(lambda: state.observer.synced)
    assert _words(state.out) == ["got ns b x"]
    assert state.err == (
        "error: ns/a: unable to write arguments: image is not found\n"
        "error: ns/c: unable to write arguments: image is not found\n"
    )
    assert state.observer.statistics().errors == 2


async def test_a_single_run_whose_template_failed_for_an_object_says_so_at_the_end(
    tmp_path: Path,
) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    source.add(pod("b", "ns", image="x"))
    template = JSONPathTemplate("{.spec.image}", allow_missing_keys=False)
    with pytest.raises(TemplateError, match="the template failed for 1 of the objects, see above"):
        async with observing(tmp_path, source, template=template, command=ECHO, once=True) as state:
            await state.task
    assert _words(state.out) == ["got ns b x"]


async def test_variables_tell_the_type_and_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "kept")
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    script = 'echo "$EVENT $MINE $OBJ"'
    async with observing(
        tmp_path,
        source,
        command=("/bin/sh", "-c", script),
        type_env_var="EVENT",
        object_env_var="OBJ",
        once=True,
    ) as state:
        await state.task
    kind, mine, data = _words(state.out)[0].split(" ", 2)
    assert (kind, mine) == ("Sync", "kept")
    assert json.loads(data)["metadata"]["name"] == "a"
    assert json.loads(data)["kind"] == "Pod"


async def test_an_object_over_the_kernels_limit_goes_by_file(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", text="x" * 200_000))
    script = 'test -z "$OBJ" && wc -c < "$OBJ_FILE" && echo "$OBJ_FILE"'
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", script), object_env_var="OBJ", once=True
    ) as state:
        await state.task
    size, path = _words(state.out)
    assert int(size) > 200_000
    assert not await asyncio.to_thread(Path(path).exists)
    assert state.err == ""


async def test_standard_input_has_the_object_or_the_whole_change(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", image="1"))
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", "cat; echo"), stdin="change"
    ) as state:
        await state.until(lambda: state.observer.synced)
        source.modify(pod("a", "ns", image="2"))
        await state.until(lambda: len(_words(state.out)) == 2)
    first, second = map(json.loads, _words(state.out))
    assert first["type"] == "Sync"
    assert "oldObject" not in first
    assert second["type"] == "Updated"
    assert second["oldObject"]["spec"]["image"] == "1"
    assert second["object"]["spec"]["image"] == "2"
    assert second["changed"] == ["metadata.resourceVersion", "spec.image"]
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", "cat; echo"), stdin="object", once=True
    ) as state:
        await state.task
    assert json.loads(_words(state.out)[2])["spec"] == {"image": "2"}


def _kinds_and_names(state: Observing) -> list[str]:
    headers = [line.split("\t") for line in state.headers if "\t" in line]
    return [kind.split()[0] + name[-2:] for kind, name in headers]


async def test_lists_relists_and_resyncs_can_be_told_apart(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    source.add(pod("b", "ns"))
    async with observing(tmp_path, source, distinct_types=True, resync_period=0.4) as state:
        await state.until(lambda: state.observer.synced)
        source.modify_drop_watch(pod("a", "ns", image="2"))
        source.add_drop_watch(pod("c", "ns"))
        source.delete_drop_watch("ns/b")
        source.reset_watch()
        wanted = {"Relisted a", "Relisted c", "Deleted b", "Resync a"}
        await state.until(lambda: wanted <= set(_kinds_and_names(state)))
    assert _kinds_and_names(state)[:2] == ["Listed a", "Listed b"]
    assert {kind.plain for kind in ObservationType} == {"Sync", "Added", "Updated", "Deleted"}


async def test_the_error_that_reaches_the_limit_ends_it(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for number in range(5):
        source.add(pod(f"p{number}", "ns"))
    command = ("/bin/sh", "-c", "exit 3")
    with pytest.raises(ErrorLimitError, match="reached maximum error limit of 2, exiting"):
        async with observing(tmp_path, source, command=command, maximum_errors=2) as state:
            await state.task
    assert state.err == "".join(
        f'error: command "/bin/sh" for Sync pods ns/p{number} exited with status code 3\n'
        for number in range(2)
    )


async def test_errors_below_the_limit_end_nothing_and_are_counted(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", "kill -9 $$"), once=True
    ) as state:
        await state.task
    assert state.err == (
        'error: command "/bin/sh" for Sync pods ns/a exited with status code -1'
        " (ended by SIGKILL)\n"
    )
    assert state.observer.statistics().errors == 1
    assert 'observe_exec_durations_milliseconds_count{exit_code="-1",type="Sync"} 1.0' in (
        state.metrics.text()
    )


async def test_the_asked_for_exit_code_is_retried_with_growing_waits(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(
        tmp_path,
        source,
        command=("/bin/sh", "-c", "echo try; exit 2"),
        retry_on_exit_code=2,
        retry_count=2,
        retry_delay=0.01,
        once=True,
    ) as state:
        await state.task
    assert _words(state.out) == ["try"] * 3
    assert state.err == (
        "retrying command: exit status 2 (next try in 0.01s, 1 left)\n"
        "retrying command: exit status 2 (next try in 0.02s, 0 left)\n"
        'error: command "/bin/sh" for Sync pods ns/a exited with status code 2\n'
    )


async def test_other_exit_codes_are_not_retried(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(
        tmp_path,
        source,
        command=("/bin/sh", "-c", "echo try; exit 3"),
        retry_on_exit_code=2,
        once=True,
    ) as state:
        await state.task
    assert _words(state.out) == ["try"]


async def test_commands_in_parallel_never_mix_their_lines(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for number in range(6):
        source.add(pod(f"p{number}", "ns"))
    script = 'for n in 1 2 3; do printf "$2 "; sleep 0.01; echo line$n; done; printf end'
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", script, "sh"), parallel=6, once=True
    ) as state:
        await state.task
    lines = state.out.splitlines()
    for number in range(6):
        begin = next(i for i, line in enumerate(lines) if line.endswith(f"ns p{number}"))
        assert lines[begin + 1 : begin + 5] == [
            *(f"p{number} line{n}" for n in (1, 2, 3)),
            "end",
        ]


async def test_names_that_the_server_lacks_are_deleted_within_the_observed_namespace(
    tmp_path: Path,
) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    known = "printf 'ns/a\\r\\nns/gone\\nother/x\\n\\nbare\\n'"
    async with observing(
        tmp_path,
        source,
        namespace="ns",
        delete_command=("/bin/echo", "remove"),
        names_command=("/bin/sh", "-c", known),
        max_deletes=DeleteLimit(),
        once=True,
    ) as state:
        await state.task
    assert _words(state.out) == ["remove ns bare", "remove ns gone"]


async def test_an_object_that_only_ceased_to_match_is_not_deleted(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", labels={"app": "x"}))
    source.add(pod("b", "ns"))
    async with observing(
        tmp_path,
        source,
        selector="app=x",
        delete_command=("/bin/echo", "remove"),
        names_command=("/bin/echo", "ns/a\nns/b\nns/c"),
        once=True,
    ) as state:
        await state.task
    assert _words(state.out) == ["remove ns c"]


async def test_too_many_deletions_are_refused_and_a_dry_run_only_tells(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "delete_command": ("/bin/echo", "remove"),
        "names_command": ("/bin/echo", "\n".join(f"ns/{letter}" for letter in "abcdefghij")),
        "once": True,
    }
    with pytest.raises(
        NamesError, match="exceeds --max-deletes=50%, so nothing was deleted: ns/a, "
    ):
        async with observing(tmp_path, **options) as state:
            await state.task
    assert _words(state.out) == []
    async with observing(tmp_path, names_dry_run=True, **options) as state:
        await state.task
    assert state.err.startswith("names: would be deleted: ns/a\nnames: would be deleted: ns/b\n")
    assert _words(state.out) == []


async def test_a_names_command_that_fails_ends_it(tmp_path: Path) -> None:
    with pytest.raises(NamesError, match="unable to list known keys: exit status 4: no such db"):
        async with observing(
            tmp_path,
            delete_command=("/bin/echo", "remove"),
            names_command=("/bin/sh", "-c", "echo no such db >&2; exit 4"),
        ) as state:
            await state.task


@pytest.mark.parametrize(
    "error",
    [
        ForbiddenError("you may not"),
        UnauthorizedError("who?"),
        BadRequestError("no such field"),
        MethodNotSupportedError("it can't be listed"),
    ],
)
async def test_a_refused_first_list_ends_it(tmp_path: Path, error: Exception) -> None:
    source = FakeControllerSource(watch_list="invalid")
    source.fail_lists(error, times=100)
    with pytest.raises(type(error)):
        async with observing(tmp_path, source) as state:
            await state.task


async def test_lists_that_fail_too_often_in_a_row_end_it(tmp_path: Path) -> None:
    source = FakeControllerSource(watch_list="invalid")
    source.fail_lists(ConnectionResetError("broken"), times=100)
    with pytest.raises(ListErrorLimitError, match="pods could not be listed 1 times in a row"):
        async with observing(tmp_path, source, maximum_errors=0) as state:
            await state.task


async def test_stopping_lets_running_commands_end_and_starts_no_more(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    source.add(pod("b", "ns"))
    script = "echo begin $2; sleep 0.3; echo end $2"
    async with observing(tmp_path, source, command=("/bin/sh", "-c", script, "sh")) as state:
        await state.until(lambda: "begin a\n" in state.out)
        state.observer.stop()
        await state.task
    assert _words(state.out) == ["begin a", "end a"]


async def test_commands_that_outlive_the_grace_period_are_ended(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    script = "echo $$; sleep 600"
    async with observing(tmp_path, source, command=("/bin/sh", "-c", script), grace=0.05) as state:
        await state.until(lambda: bool(_words(state.out)))
        state.observer.stop()
        await state.task
    assert not await asyncio.to_thread(Path(f"/proc/{_words(state.out)[0]}").exists)


async def test_a_second_stop_ends_them_at_once(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", "echo on; sleep 600"), grace=600
    ) as state:
        await state.until(lambda: bool(_words(state.out)))
        state.observer.stop()
        state.observer.stop()
        await asyncio.wait_for(state.task, 45)


async def test_without_a_command_updates_show_the_fields_that_changed(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", image="1", ports=[1]))
    async with observing(tmp_path, source) as state:
        await _one_update(state)
    assert [line for line in state.out.splitlines() if not line.startswith("# ")] == [
        '    spec.image: "1" → "2"',
        "    spec.ports[1]: (none) → 2",
    ]


async def test_changes_can_be_printed_one_json_line_each(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", image="1"))
    async with observing(tmp_path, source, printer_format=Format.JSON) as state:
        await _one_update(state)
    first, second = map(json.loads, state.out.splitlines())
    assert (first["type"], first["resource"], first["key"]) == ("Sync", "pods", "ns/a")
    assert second["oldObject"]["spec"] == {"image": "1"}
    assert second["object"]["spec"] == {"image": "2", "ports": [1, 2]}


async def _one_update(state: Observing) -> None:
    await state.until(lambda: state.observer.synced)
    state.source.modify(pod("a", "ns", image="2", ports=[1, 2]))
    await state.until(lambda: state.observer.statistics().finished == 2)


async def test_only_the_named_objects_are_told(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for name in "abc":
        source.add(pod(name, "ns"))
    async with observing(tmp_path, source, names=("a", "c"), command=ECHO, once=True) as state:
        await state.task
    assert _words(state.out) == ["got ns a", "got ns c"]


async def test_quiet_prints_no_headers(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    async with observing(tmp_path, source, quiet=True, command=ECHO, once=True) as state:
        await state.task
    assert state.out == "got ns a\n"


async def test_an_error_window_forgets_old_errors() -> None:
    clock = FakeClock()
    budget = ErrorBudget(3, 60.0, clock)
    for _ in range(10):
        budget.spend()
        await clock.advance(31)
    budget.spend()
    with pytest.raises(ErrorLimitError, match="reached maximum error limit of 3 within 60s"):
        budget.spend()
    assert budget.total == 12
    never = ErrorBudget(-1, 0.0, clock)
    for _ in range(100):
        never.spend()
    assert never.total == 100


async def test_a_text_over_the_kernels_limit_goes_by_standard_input(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", ip="x" * 200_000))
    template = JSONPathTemplate("{.spec.ip}")
    count = ("/bin/sh", "-c", "echo $# $(wc -c)", "sh")
    async with observing(
        tmp_path, source, command=count, template=template, stdin="template", once=True
    ) as state:
        await state.task
    assert _words(state.out) == ["2 200000"]
    async with observing(tmp_path, source, command=count, template=template, once=True) as state:
        await state.task
    assert "the argument is too long (200000 bytes); use --stdin=template" in state.err


@pytest.mark.parametrize(
    "options", [{"template": JSONPathTemplate("{.spec.b}")}, {"stdin": "change"}]
)
async def test_an_object_nested_too_deeply_is_an_error_of_its_own_and_the_rest_goes_on(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    # Beyond any Python version's C recursion limit; a decoder would refuse it, so bypass it.
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    raw = f'{{"kind":"Pod","metadata":{{"name":"a","namespace":"ns"}},"spec":{deep}}}'
    obj = msgspec.structs.replace(Object.from_dict(pod("a", "ns")), _packed=raw.encode())
    async with observing(tmp_path, command=ECHO, **options) as state:
        for item in (obj, Object.from_dict(pod("b", "ns"))):
            state.observer.dispatcher.submit(
                Observation(ObservationType.UPDATED, item.key, item, item, resource="pods")
            )
        await state.until(lambda: "got ns b" in state.out)
    assert state.err == "error: ns/a: nested too deeply\n"


async def test_what_a_names_command_prints_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("listwatch.observe.names._MOST_PRINTED", 100_000)
    with pytest.raises(NamesError, match="printed more than"):
        async with observing(
            tmp_path, names_command=("/usr/bin/yes", "ns/a"), delete_command=ECHO, once=True
        ) as state:
            await state.task


async def test_with_several_resources_lines_and_documents_say_which(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    two = ("pods", "nodes")
    async with observing(tmp_path, source, once=True, resources=two) as state:
        await state.task
    assert state.headers == ["Sync started\tpods", "Sync 1\tpods ns a", "Sync ended\tpods"]
    async with observing(
        tmp_path, source, command=("/bin/sh", "-c", "cat"), stdin="change", once=True, resources=two
    ) as state:
        await state.task
    assert '"resource":"pods"' in state.out


async def test_only_updates_of_the_asked_for_fields_are_reported(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns", image="1", zone="x"))
    async with observing(tmp_path, source, only_paths=("spec.image",)) as state:
        await state.until(lambda: state.observer.synced)
        source.modify(pod("a", "ns", image="1", zone="y"))
        source.modify(pod("a", "ns", image="2", zone="y"))
        source.delete("ns/a")
        await state.until(lambda: "Deleted" in state.out)
    kinds = [line.split()[0] for line in state.headers if "\t" in line]
    assert kinds == ["Sync", "Updated", "Deleted"]
    assert "spec.image" in state.out


async def test_one_command_runs_for_many_changes_and_reads_them(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for number in range(5):
        source.add(pod(f"p{number}", "ns"))
    script = ("/bin/sh", "-c", "while read -r line; do echo got; done; echo end")
    async with observing(
        tmp_path, source, exec_batch=3, command=script, delete_command=("/bin/cat",)
    ) as state:
        await state.until(lambda: state.observer.synced)
        source.delete("ns/p0")
        await state.until(lambda: '"Deleted"' in state.out)
    assert _words(state.out)[:7] == ["got", "got", "got", "end", "got", "got", "end"]
    batches = [line.split("\t")[0] for line in state.headers if line.startswith("Batch")]
    assert batches == ["Batch 3", "Batch 2", "Batch 1"]
    (deleted,) = [json.loads(line) for line in _words(state.out)[7:]]
    assert (deleted["type"], deleted["key"]) == ("Deleted", "ns/p0")


async def test_a_failed_batch_names_its_first_change(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for number in range(2):
        source.add(pod(f"p{number}", "ns"))
    async with observing(
        tmp_path, source, exec_batch=9, command=("/bin/false",), once=True
    ) as state:
        await state.task
    assert state.err == (
        'error: command "/bin/false" for Sync pods ns/p0 and 1 more exited with status code 1\n'
    )
