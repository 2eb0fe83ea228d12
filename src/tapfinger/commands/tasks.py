"""``tapfinger run``, ``submit``, ``list``, ``show``, ``logs``, ``cancel``, ``events``, ``clusters``: live tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.options import Fields, StateOption, UrlOption, amounts, expand_fields, name_values, open_client
from tapfinger.commands.screen import OutputWriter, plain_console, say
from tapfinger.commands.secrets import given_secrets
from tapfinger.errors import ConfigError
from tapfinger.live.protocol.records import TaskSpec
from tapfinger.visible import visible

if TYPE_CHECKING:
    from tapfinger.live.http.client import Client, TaskInfo

TaskArgument = Annotated[int, typer.Argument(metavar="TASK", min=1, help="Number of a task.")]
ArgvArgument = Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="What to run.")]


#: Seconds that a coordinator may be unreachable while someone watches a task: it may be restarting.
PATIENCE = 120.0


def _here(_: str, cwd: str | None) -> str | None:
    return str(Path.cwd()) if cwd is None else cwd or None


#: Fields of a task that are options of both ``run`` and ``submit``.
_FIELDS = "type minimum maximum clusters env secrets cwd retries time_limit on_disconnect requeue_lost resizable name"
_PARSERS = {
    "minimum": (list[str] | None, amounts),
    "maximum": (list[str] | None, amounts),
    "clusters": (list[str] | None, lambda _, names: names or []),
    "env": (list[str] | None, name_values),
    "secrets": (list[str] | None, given_secrets),
    "cwd": (str | None, _here),
    "on_disconnect": (bool, lambda _, keep: "keep" if keep else "stop"),
}
#: The empty type stands for the site's default (``Client.default_type``).
RunOptions = Annotated[dict[str, Any], Fields(TaskSpec, _FIELDS, defaults={"type": ""}, parsers=_PARSERS, make=dict)]
SubmitOptions = Annotated[
    dict[str, Any], Fields(TaskSpec, f"{_FIELDS} key", defaults={"type": ""}, parsers=_PARSERS, make=dict)
]


def _submit(client: Client, argv: list[str], given: dict[str, Any], copies: int = 1) -> list[int]:
    from tapfinger.live.http.client import make_spec

    secrets = {name: value for name, value in given["secrets"].items() if value is not None}
    named = {"type": given["type"] or client.default_type(), "secrets": list(given["secrets"])}
    return client.submit(*[make_spec(argv=argv, **{**given, **named})] * copies, secrets=secrets)


@expand_fields
def run(
    argv: ArgvArgument,
    state: StateOption = None,
    url: UrlOption = None,
    *,
    given: RunOptions,
    progress: Annotated[
        bool | None,
        typer.Option(help="Say on standard error how far it is, if it reports that. Without it: in a terminal."),
    ] = None,
) -> None:
    """Run a program on the site, show its output, and return its exit code. Ctrl-C cancels it."""
    import sys
    from contextlib import ExitStack

    from tapfinger.commands.progress import lines_of

    output = OutputWriter()
    with open_client(state, url) as client, ExitStack() as meanwhile:
        meanwhile.callback(output.close)
        (task,) = _submit(client, argv, given)
        client.patience = PATIENCE
        if sys.stderr.isatty() if progress is None else progress:
            meanwhile.enter_context(lines_of(meanwhile.enter_context(open_client(state, url)), task))
        try:
            for piece in client.logs(task, follow=True):
                output.write(piece)
            info = client.wait(task)
        except KeyboardInterrupt:
            client.cancel(task)
            typer.echo(f"task {task}: cancelling", err=True)
            info = client.wait(task)
    if info.incomplete:
        say(f"task {task} finished, but {info.warnings[-1] if info.warnings else 'incomplete'}", err=True)
    if info.phase.value != "finished":
        say(f"task {task} {info.phase.value}{f': {info.reason}' if info.reason else ''}", err=True)
    raise typer.Exit(_exit_code(info))


def _exit_code(info: TaskInfo) -> int:
    if info.phase.value == "cancelled":
        return 130
    if info.code is None:
        return 0 if info.phase.value == "finished" else 1
    return 128 - info.code if info.code < 0 else info.code


@expand_fields
def submit(
    context: typer.Context,
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="What to run, if not --file.")
    ] = None,
    state: StateOption = None,
    url: UrlOption = None,
    *,
    given: SubmitOptions,
    copies: Annotated[int, typer.Option(min=1, max=10_000, help="How many of it.")] = 1,
    file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Tasks, a JSON object per line, as over HTTP; - for standard input."),
    ] = None,
) -> None:
    """Submit a program, or a file of many, and print their numbers; they are safe with the coordinator then."""
    if (file is None) == (not argv):
        raise ConfigError("give a program after --, or a file of tasks with --file, one of the two")
    if file is not None:
        _submit_file(file, context, state, url)
        return
    if given["key"] is not None and copies > 1:
        raise ConfigError("--key names one task; leave it out, or --copies")
    with open_client(state, url) as client:
        for task in _submit(client, argv or [], given, copies):
            typer.echo(task)


def _submit_file(file: str, context: typer.Context, state: Path | None, url: str | None) -> None:
    import sys

    from tapfinger.commands.batches import submit_all

    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in ("state", "url", "file") and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"each line of --file says all about its task; leave out {option.opts[0]}")
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {file} cannot be read: {error}") from None
    with open_client(state, url) as client:
        for task in submit_all(client, text.splitlines(), "standard input" if file == "-" else file):
            typer.echo(task)


HEADS = ("task", "phase", "type", "cluster", "gets", "progress", "attempt", "code", "program")
ALWAYS = ("task", "phase", "type", "program")
#: Least characters of a program that are shown, however narrow the terminal is.
LEAST = 10


def _row(info: TaskInfo) -> tuple[str, ...]:
    from tapfinger.commands.progress import bar

    return (
        str(info.id),
        f"{info.phase.value}, rests" if info.rests else info.phase.value,
        info.spec.type,
        info.cluster or "",
        ", ".join(f"{amount:g} {name}" for name, amount in (info.allocation or {}).items() if amount),
        bar(info.progress),
        str(info.attempt) if info.attempt > 1 else "",
        "" if info.code is None else str(info.code),
        (info.spec.name or " ".join(info.spec.argv) + (" …" if info.redacted else "")).replace("\n", " "),
    )


def list_tasks(
    state: StateOption = None,
    url: UrlOption = None,
    phase: Annotated[
        list[str] | None, typer.Option(metavar="PHASE", help="Only tasks in this phase, such as queued; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 20,
) -> None:
    """List the latest tasks."""
    from rich import box
    from rich.table import Table

    from tapfinger.core.contract import Phase
    from tapfinger.errors import UnknownNameError

    known = {p.value: p for p in Phase}
    for name in phase or ():
        if name not in known:
            raise UnknownNameError("phase", name, known)
    with open_client(state, url) as client:
        found, counts = client.list([known[name] for name in phase or ()], limit), client.counts()
    rows = [tuple(map(visible, _row(info))) for info in found]
    table = Table(box=box.SIMPLE_HEAD)
    # Empty columns are left out, to save space on a narrow terminal.
    shown = [n for n, head in enumerate(HEADS) if head in ALWAYS or any(row[n] for row in rows)]
    console = plain_console()
    taken = sum(2 + max(len(text) for text in (HEADS[n], *(row[n] for row in rows))) for n in shown[:-1])
    for head in (HEADS[n] for n in shown[:-1]):
        right = head in ("task", "attempt", "code")
        table.add_column(head, justify="right" if right else "left", no_wrap=head in ("task", "phase", "progress"))
    # Only the program is cut, to the remaining width: half a phase or half a bar would be useless.
    table.add_column(HEADS[-1], no_wrap=True, max_width=min(50, max(LEAST, console.width - taken - 2)))
    for row in rows:
        table.add_row(*(row[n] for n in shown))
    console.print(table)
    say(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no tasks yet")


def show(task: TaskArgument, state: StateOption = None, url: UrlOption = None) -> None:
    """Show a task, how far it says it is, and what happened to it."""
    from tapfinger.commands.progress import told

    with open_client(state, url) as client:
        info = client.show(task)
    say(f"task {info.id}: {info.phase.value}{f' ({info.reason})' if info.reason else ''}")
    say(f"  {' '.join(info.spec.argv)}{' … (the rest is for its owner and operators)' if info.redacted else ''}")
    if info.rests:
        times = "once" if info.setbacks == 1 else f"{info.setbacks} times in a row"
        say(f"  rests for {info.rests:.0f} more seconds: it ended early and without success {times}")
    if info.least:
        amounts = ", ".join(f"{amount:g} {name}" for name, amount in info.least.items())
        say(f"  gets at least {amounts}: an attempt ran out with less")
    if info.progress is not None:
        say(f"  {told(info)}{'  (incomplete)' if info.incomplete else ''}")
    for warning in info.warnings:
        say(f"  warning: {warning}")
    if info.results and info.results_until is not None:
        from datetime import datetime

        until = datetime.fromtimestamp(info.results_until).strftime("%Y-%m-%d %H:%M")
        say(f"  files: {info.results} on {info.cluster}, until {until} ('tapfinger get {info.id}' fetches them)")
    for line in info.history:
        say(f"  {_told(line)}")


def _told(line: Mapping[str, Any], task: str = "") -> str:
    """An event of the history as a line; ``task``: names its task, where that is not clear."""
    from datetime import datetime

    at = datetime.fromtimestamp(line["at"]).strftime("%H:%M:%S.%f")[:-3]
    where = f" on {line['cluster']}" if line["cluster"] else ""
    attempt = f" (attempt {line['attempt']})" if line["attempt"] else ""
    detail = f": {line['detail']}" if line["detail"] else ""
    return f"{at}  {task}{line['kind']}{where}{attempt}{detail}"


def events(
    state: StateOption = None,
    url: UrlOption = None,
    last: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the latest.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
) -> None:
    """Print what happened lately, to tasks and to clusters."""
    with open_client(state, url) as client:
        lines = client.events(last=last)
        client.patience = PATIENCE if follow else 0.0
        seen = 0
        while True:
            for line in lines:
                seen = line["seq"]
                say(_told(line, f"task {line['task']} " if line["task"] else ""))
            if not follow:
                return
            lines = client.events(after=seen, wait=20.0)


def logs(
    task: TaskArgument,
    state: StateOption = None,
    url: UrlOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt. Without it: the latest.")] = None,
    offset: Annotated[int, typer.Option(metavar="BYTES", min=0, help="Where to go on, in bytes from its start.")] = 0,
) -> None:
    """Print what a task has written."""
    output = OutputWriter()
    with open_client(state, url) as client:
        client.show(task)
        client.patience = PATIENCE if follow else 0.0
        try:
            for piece in client.logs(task, attempt, follow, offset):
                output.write(piece)
        finally:
            output.close()


def cancel(
    task: TaskArgument,
    state: StateOption = None,
    url: UrlOption = None,
    wait: Annotated[bool, typer.Option(help="Return only when nothing of it is left.")] = True,
) -> None:
    """End a task, whatever it does."""
    with open_client(state, url) as client:
        info = client.cancel(task)
        if wait and not info.over:
            info = client.wait(task)
    ended = info.phase.value if info.over else "cancelling"
    typer.echo(f"task {task}: {ended}" if info.cancelled else f"task {task} had ended already: {ended}")


def clusters(state: StateOption = None, url: UrlOption = None) -> None:
    """Show the clusters and what is free."""
    from rich import box
    from rich.table import Table

    from tapfinger.live.protocol import words

    with open_client(state, url) as client:
        found = client.clusters()
    table = Table(box=box.SIMPLE_HEAD)
    kinds = any(cluster.get("kind") for cluster in found)
    for head in ("cluster", *(("kind",) if kinds else ()), "agent", "free", "tasks"):
        table.add_column(head)
    whole = ""
    for cluster in found:
        if (part_of := cluster.get("part_of", "")) != whole and part_of:
            nodes = [node for node in found if node.get("part_of") == part_of]
            count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
            row = (part_of, *(("",) if kinds else ()), count, _free(nodes), str(sum(len(n["tasks"]) for n in nodes)))
            table.add_row(*row, style="bold")
        whole = part_of
        free = _free([cluster])
        if any((cluster.get("others") or {}).values()):
            free += f"; others use {words.some(cluster['others'])}"
        agent = "connected" if cluster["connected"] else words.silence(cluster["last_heard"])
        agent += ", drained" if cluster["drained"] else ""
        agent += ", tasks are not isolated" if cluster.get("isolates") is False else ""
        if (both := cluster["disagreement"]) is not None:
            agent += f"; it has {words.some(both['agent'])}, configured are {words.some(both['configured'])}"
        agent += f", takes no tasks: {cluster['trouble']}" if cluster.get("trouble") else ""
        name = f"  {cluster['name']}" if part_of else cluster["name"]
        kind = (cluster.get("kind", ""),) if kinds else ()
        table.add_row(name, *kind, agent, free, " ".join(map(str, cluster["tasks"])))
    plain_console().print(table)


def _free(clusters: Sequence[Mapping[str, Any]]) -> str:
    """``3 of 4 cpu, 1 of 2 gpu``: what is free of these clusters together."""
    names = clusters[0]["capacity"]
    total = {name: [sum(c[what][name] for c in clusters) for what in ("free", "capacity")] for name in names}
    return ", ".join(f"{free:g} of {capacity:g} {name}" for name, (free, capacity) in total.items())


ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of a cluster.")]


def drain(
    cluster: ClusterArgument,
    state: StateOption = None,
    url: UrlOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take tasks again.")] = False,
) -> None:
    """Let a cluster finish what it has and take nothing new."""
    with open_client(state, url) as client:
        client.drain(cluster, undo)


def give_up(cluster: ClusterArgument, state: StateOption = None, url: UrlOption = None) -> None:
    """Say that a silent cluster's machine is gone for good; its tasks are run elsewhere, or end as lost."""
    with open_client(state, url) as client:
        client.give_up(cluster)
