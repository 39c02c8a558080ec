"""`listwatch observe`: the options of the command, and its start."""

import asyncio
import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from listwatch.client.command_line import CommandError
from listwatch.client.connection_options import ConnectionOptions, connection_options
from listwatch.errors import ListWatchError
from listwatch.observe.options import (
    DeleteLimit,
    ObserveOptions,
    UsageError,
    parse_delete_limit,
    parse_duration,
)
from listwatch.observe.printing import Format, Printer
from listwatch.observe.templates import TemplateFormat, make_template, read_template_file
from listwatch.observe.templates.template import Template

_EXIT_CODES = """\b
Exit codes:
  0    ended by --once, --exit-after, --until, SIGINT (Ctrl-C) or SIGTERM
  1    a limit was reached, --until or --for-condition did not hold, or another failure
  2    invalid options, an invalid template, a selector that the server rejects
  3    the kubeconfig is missing or invalid
  4    the server is unreachable
  5    the server rejected the credentials
  6    the server forbade the request
  7    the server has no such resource
  8    the state file is unusable
  125  too few resources to start a command: open files, processes, memory
  126  a command is not executable
  127  a command was not found
  130  interrupted before it started
  141  standard output was closed by its reader"""


def _failure(error: BaseException) -> CommandError:
    from listwatch.observe.session import exit_code  # noqa: PLC0415 - slow to load

    return CommandError(error, exit_code(error))


class _CommandAfterDashes(click.Command):
    """Takes the words after the first `--` as the command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta["command"] = tuple(args[place + 1 :])
            args = args[:place]
        else:
            ctx.meta["command"] = ()
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND [ARG]...]"]


class _Duration(click.ParamType[tuple[float, str]]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, str]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_duration(value), value
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _DeleteLimit(click.ParamType[DeleteLimit]):
    name = "number|percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> DeleteLimit:
        if isinstance(value, DeleteLimit):
            return value
        try:
            return parse_delete_limit(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()


@click.command("observe", cls=_CommandAfterDashes, epilog=_EXIT_CODES)
@click.argument("resource", required=False, default="")
@click.argument("names_of_objects", metavar="[NAME]...", nargs=-1)
@click.option("-A", "--all-namespaces", is_flag=True, help="Observe all namespaces.")
@click.option("-n", "--namespace", help="Namespace to observe; default: the kubeconfig's.")
@click.option("-l", "--selector", default="", help="Label selector, such as app=web.")
@click.option("--field-selector", default="", help="Field selector, such as spec.nodeName=a.")
@click.option(
    "-d",
    "--delete",
    "delete_words",
    multiple=True,
    metavar="WORD",
    help="Command to run for deletions. Repeat the option for each further word.",
)
@click.option(
    "--names",
    "names_words",
    multiple=True,
    metavar="WORD",
    help="Command that prints the names another system knows, one per line. A name that the"
    " server does not have is handled as a deletion. Repeat the option for each further word.",
)
@click.option(
    "--names-dry-run", is_flag=True, help="Print what --names would delete, without deleting."
)
@click.option(
    "--max-deletes",
    type=_DeleteLimit(),
    default="50%",
    show_default=True,
    help="Maximum number or share of the names from --names to delete; -1 for no limit.",
)
@click.option("--template", "template_text", default=None, help="Template of a further argument.")
@click.option("-a", "--argument", "arguments", multiple=True, hidden=True)
@click.option(
    "-o",
    "--output",
    default="",
    metavar="FORMAT",
    help="Language of --template: jsonpath (default), jsonpath-file, jsonpath-as-json,"
    " go-template, go-template-file, jinja2, jq. Without a command, format of the printed changes:"
    " json, yaml, name, diff.",
)
@click.option(
    "--allow-missing-template-keys",
    type=bool,
    default=True,
    is_flag=False,
    flag_value="true",
    show_default=True,
    help="Ignore missing fields in templates.",
)
@click.option("--strict-templates", is_flag=True, hidden=True)
@click.option("--type-env-var", default="", help="Environment variable for the type of change.")
@click.option("--object-env-var", default="", help="Environment variable for the object's JSON.")
@click.option(
    "--stdin",
    type=click.Choice(["object", "change", "template"]),
    is_flag=False,
    flag_value="object",
    default=None,
    help="Pass the object as JSON on standard input. With =change, add the type, the old object"
    " and the changed paths. With =template, pass the template's text instead of an argument.",
)
@click.option(
    "--show-managed-fields",
    is_flag=True,
    help="Keep metadata.managedFields in objects, templates and printed changes.",
)
@click.option(
    "--distinct-types",
    is_flag=True,
    help="Report Listed, Relisted or Resync instead of Sync.",
)
@click.option(
    "--maximum-errors",
    type=int,
    default=20,
    show_default=True,
    help="Exit after this many failed runs; -1 for never.",
)
@click.option(
    "--error-window", type=DURATION, default="0", help="Count only errors of this last period."
)
@click.option(
    "--retry-on-exit-code",
    type=int,
    default=0,
    help="Retry a command that returns this exit code.",
)
@click.option(
    "--retry-count",
    type=int,
    default=2,
    show_default=True,
    help="Maximum number of retries.",
)
@click.option(
    "--retry-delay",
    type=DURATION,
    default="1s",
    show_default=True,
    help="Delay before the first retry; doubles with each retry.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1, max=1000),
    default=1,
    show_default=True,
    help="Maximum number of commands at a time; never two for one object.",
)
@click.option(
    "--exec-batch",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Run one command for up to N waiting changes. It gets no further arguments, and reads one"
    " line of JSON for each change from standard input.",
)
@click.option("--timeout", type=DURATION, default="0", help="Terminate a command after this time.")
@click.option(
    "--debounce",
    type=DURATION,
    default="0",
    help="Wait this long for further changes of an object and merge them into one.",
)
@click.option(
    "--grace",
    type=DURATION,
    default="10s",
    show_default=True,
    help="Time that running commands have to finish at exit.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save progress in FILE, so that the next run handles only new changes, including"
    " deletions.",
)
@click.option("--once", is_flag=True, help="Exit when all existing objects are processed.")
@click.option("--exit-after", type=DURATION, default="0", help="Exit after this time.")
@click.option(
    "--until",
    default="",
    metavar="EXPRESSION",
    help="Exit when this CEL expression holds for all objects, such as"
    " \"object.status.phase == 'Running'\". Exit code 1 if it did not hold at the end.",
)
@click.option(
    "--for-condition",
    "for_conditions",
    multiple=True,
    metavar="TYPE[=STATUS]",
    help="Exit when all objects have this condition, such as Ready or Available=False.",
)
@click.option(
    "--resync-period", type=DURATION, default="0", help="Re-deliver every object at this interval."
)
@click.option(
    "--poll",
    type=DURATION,
    default="0",
    help="List a resource that can't be watched at this interval, and compare.",
)
@click.option("--print-metrics-on-exit", is_flag=True, help="Print metrics at exit.")
@click.option(
    "--listen-addr",
    default=None,
    help="host:port that serves /metrics, /healthz and /readyz. Default: a free port on loopback;"
    " none with --once or an empty value.",
)
@click.option("--ui", is_flag=True, help="Serve a web page with live changes and commands.")
@click.option("-q", "--quiet", is_flag=True, help="Omit the lines that start with '#'.")
@click.option("--no-headers", is_flag=True, hidden=True)
@click.option(
    "--ignore-path",
    "ignore_paths",
    multiple=True,
    metavar="PATH",
    help="Hide changes of this field, such as status or metadata.annotations*.",
)
@click.option(
    "--only-path",
    "only_paths",
    multiple=True,
    metavar="PATH",
    help="Report an update only if this field changed, such as spec or status.phase.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colour the output.",
)
@connection_options
@click.pass_context
def observe_command(ctx: click.Context, /, *, connection: ConnectionOptions, **values: Any) -> None:
    """Run COMMAND for every addition, change and deletion of RESOURCE.

    RESOURCE is a name that kubectl accepts (pods, po, deployments.apps), or several separated by
    commas. COMMAND gets its own arguments, then the namespace (for namespaced resources), the
    name, and the text of --template. It runs for every change of an object, one at a time and in
    order. Without COMMAND, changes are printed.

    \b
      listwatch observe services -A
      listwatch observe services --template '{.spec.clusterIP}' -- ./register_dns.sh
      listwatch observe nodes --names ./known.sh --delete ./remove.sh -- ./add.sh
    """  # noqa: D301 - click's marker: do not rewrap
    if not hasattr(os, "killpg"):
        raise click.ClickException(
            "listwatch observe runs on Linux and macOS: it ends commands by process group"
        )
    try:
        options = _options(ctx.meta["command"], values)
        options.check()
        printer_format, coloured = _printing(options, values)
    except (ListWatchError, OSError) as error:
        raise _failure(error) from error
    _hold_standard_streams()
    # Imported late: --help and invalid options need none of it.
    from listwatch.observe.session import observe  # noqa: PLC0415

    gc.freeze()
    try:
        asyncio.run(
            observe(
                options,
                Printer(
                    printer_format,
                    quiet=options.quiet,
                    coloured=coloured,
                    ignore_paths=values["ignore_paths"],
                    managed_fields=options.managed_fields,
                ),
                connection,
            )
        )
    except (ListWatchError, TimeoutError) as error:
        raise _failure(error) from error


def _hold_standard_streams() -> None:
    """Open the null device in place of each closed standard stream.

    Otherwise the next file or connection would get its number and receive our output.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the kernel assigns the lowest free number: this one


def _printing(options: ObserveOptions, values: Mapping[str, Any]) -> tuple[Format, bool]:
    printer_format = Format.HEADERS
    if values["output"] in set(Format):
        printer_format = Format(values["output"])
        if options.command and values["output"]:
            raise UsageError(
                f"--output={values['output']} prints changes; remove it or the command"
            )
    colour = values["color"]
    coloured = colour == "always" or (
        colour == "auto" and os.isatty(1) and "NO_COLOR" not in os.environ
    )
    return printer_format, coloured


def _options(command: tuple[str, ...], values: Mapping[str, Any]) -> ObserveOptions:
    def seconds(name: str) -> float:
        value: float = values[name][0]
        return value

    once: bool = values["once"]
    return ObserveOptions(
        resources=tuple(word for word in values["resource"].split(",") if word),
        names=values["names_of_objects"],
        namespace=values["namespace"],
        all_namespaces=values["all_namespaces"],
        selector=values["selector"],
        field_selector=values["field_selector"],
        command=command,
        delete_command=values["delete_words"],
        names_command=values["names_words"],
        names_dry_run=values["names_dry_run"],
        max_deletes=values["max_deletes"],
        template=_template(values),
        type_env_var=values["type_env_var"],
        object_env_var=values["object_env_var"],
        stdin=values["stdin"] or "",
        distinct_types=values["distinct_types"],
        maximum_errors=values["maximum_errors"],
        error_window=seconds("error_window"),
        retry_on_exit_code=values["retry_on_exit_code"],
        retry_count=values["retry_count"],
        retry_delay=seconds("retry_delay"),
        parallel=values["parallel"],
        exec_batch=values["exec_batch"] or 0,
        only_paths=values["only_paths"],
        until=values["until"],
        for_conditions=values["for_conditions"],
        managed_fields=values["show_managed_fields"],
        timeout=seconds("timeout") or None,
        debounce=seconds("debounce"),
        grace=seconds("grace"),
        once=once,
        exit_after=seconds("exit_after") or None,
        exit_after_text=values["exit_after"][1],
        resync_period=seconds("resync_period") or None,
        poll=seconds("poll") or None,
        quiet=values["quiet"] or values["no_headers"],
        print_metrics_on_exit=values["print_metrics_on_exit"],
        ui=values["ui"],
        state=values["state"],
        listen_address=_listen_address(values),
    )


def _listen_address(values: Mapping[str, Any]) -> str:
    given: str | None = values["listen_addr"]
    if given is not None:
        return given
    return "" if values["once"] and not values["ui"] else "127.0.0.1:0"


def _template(values: Mapping[str, Any]) -> Template | None:
    given = values["template_text"] is not None
    text = values["template_text"] or " ".join(values["arguments"])
    output = values["output"]
    if output in set(Format):
        output = ""
    if output == "gotemplate":
        click.echo("DEPRECATED: use go-template instead of gotemplate", err=True)
        output = "go-template"
    name, equals, inline = output.partition("=")
    if equals:
        text = text or inline  # kubectl's form: -o jsonpath='{.metadata.name}'
    try:
        template_format = TemplateFormat(name or "jsonpath")
    except ValueError:
        allowed = ", ".join([*(f for f in TemplateFormat), *(f for f in Format if f)])
        raise UsageError(f"--output={name}: unknown format; use one of {allowed}") from None
    if not text and not given:
        if output:
            raise UsageError(f"--output={name} needs a --template")
        return None
    if template_format.is_file:
        text = read_template_file(Path(text))
    strict = values["strict_templates"] or not values["allow_missing_template_keys"]
    return make_template(template_format, text, allow_missing_keys=not strict)
