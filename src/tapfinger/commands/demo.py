"""``tapfinger demo``: submits a mixed batch of small tasks and shows how they flow."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapfinger.commands.demo_tasks import Batch, choose
from tapfinger.commands.interrupts import interruptible
from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.progress import bar
from tapfinger.commands.screen import plain_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tapfinger.live.http.client import Client, TaskInfo
    from tapfinger.live.protocol.records import TaskSpec

#: Seconds between updates.
PULSE = 0.25


def demo(
    state: StateOption = None,
    url: UrlOption = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many tasks. Without it: 9 of the test-bed, 20 others.")
    ] = None,
    testbed: Annotated[
        bool | None,
        typer.Option(help="Short PyTorch tasks, or programs that only sleep. Without it: what is installed here."),
    ] = None,
) -> None:
    """Submit a mixed batch of small tasks and show how they flow; starts a site of its own if none runs."""
    console = plain_console()
    batch = choose(testbed, _is_local(state, url))
    console.print(batch.about, highlight=False, soft_wrap=True)
    with interruptible():
        done = _flow(state, url, batch, tasks or batch.many, console)
    _summary(done, console)


def _flow(state: Path | None, url: str | None, batch: Batch, tasks: int, console: Console) -> list[TaskInfo]:
    with _site(state, url, batch, console) as client:
        specs = _specs(client, batch, tasks)
        ids = client.submit(*specs)
        kinds = {task: spec.name for task, spec in zip(ids, specs, strict=True)}
        try:
            return (_live if console.is_terminal else _lines)(client, kinds, console)
        except KeyboardInterrupt:
            for task in ids:
                client.cancel(task)
            console.print("Interrupted: what had not ended is cancelled.", highlight=False)
            raise typer.Exit(130) from None


def _is_local(state: Path | None, url: str | None) -> bool:
    """Whether the site runs on this machine, or will be started here."""
    from urllib.parse import urlsplit

    from tapfinger.errors import CoordinatorError
    from tapfinger.live.state_dir import find_coordinator

    try:
        addresses = find_coordinator(state, url)[0].split(",")
    except CoordinatorError:
        return True
    return all(urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1") for address in addresses)


@contextmanager
def _site(state: Path | None, url: str | None, batch: Batch, console: Console) -> Iterator[Client]:
    """The site that the options name, or a temporary one."""
    from tempfile import TemporaryDirectory

    from tapfinger.errors import CoordinatorError
    from tapfinger.live.http.client import Client
    from tapfinger.live.supervisor import Supervisor

    try:
        found = open_client(state, url)
    except CoordinatorError:
        if state is not None or url is not None:
            raise
        with TemporaryDirectory(prefix="tapfinger-demo-") as folder:
            config = Path(folder) / "site.toml"
            config.write_text(batch.site, encoding="utf-8")
            site = Supervisor(Path(folder) / "state", config)
            console.print("No site runs here; starting one for the demo.", highlight=False)
            address = site.up(0)
            try:
                token = (site.state / "token").read_text(encoding="ascii").strip()
                with Client(address, token) as client:
                    yield client
            finally:
                site.end()
        return
    with found as client:
        yield client


def _specs(client: Client, batch: Batch, count: int) -> list[TaskSpec]:
    """Tasks of each kind in turn. Each has the site's type of the same name, or another one, within its bounds."""
    from tapfinger.live.http.client import make_spec
    from tapfinger.live.protocol.records import DEFAULT_TYPE

    types = {kind["name"]: kind for kind in client.site()["scenario"]["task_types"]}
    specs = []
    for number in range(count):
        kind = batch.kinds[number % len(batch.kinds)]
        chosen: dict[str, Any] = types.get(kind.name) or types.get(DEFAULT_TYPE) or next(iter(types.values()))
        low = chosen["minimum"].get("cpu", 0)
        high = {**chosen["minimum"], **chosen["maximum"]}.get("cpu", 0)
        least = min(max(low, kind.least), high)
        specs.append(
            make_spec(
                argv=list(kind.argv),
                type=chosen["name"],
                minimum={"cpu": least},
                maximum={"cpu": max(least, min(high, kind.most))},
                retries=kind.retries,
                name=kind.name,
            )
        )
    return specs


# --------------------------------------------------------------------------- show


def _looks(client: Client, kinds: dict[int, str]) -> Iterator[list[TaskInfo]]:
    """All tasks of the batch, repeatedly, until they have ended."""
    while True:
        found = {info.id: info for info in client.list(limit=10_000) if info.id in kinds}
        yield [found[task] for task in kinds]
        if all(info.over for info in found.values()):
            return
        time.sleep(PULSE)


def _lines(client: Client, kinds: dict[int, str], console: Console) -> list[TaskInfo]:
    """Print a line for every change."""
    said: dict[int, tuple[str, int]] = {}
    infos: list[TaskInfo] = []
    for infos in _looks(client, kinds):
        for info in infos:
            now = (info.phase.value, info.attempt)
            if said.get(info.id) != now and info.phase.value in ("running", "finished", "failed", "cancelled", "lost"):
                console.print(f"task {info.id} ({kinds[info.id]}) {_phrase(info)}", highlight=False, soft_wrap=True)
            said[info.id] = now
        sys.stdout.flush()
    return infos


def _phrase(info: TaskInfo) -> str:
    if info.over and info.ended is not None:
        return f"{info.phase.value} {info.ended - info.submitted:.1f} s after its submission"
    waited = (info.started or info.submitted) - info.submitted
    again = f", attempt {info.attempt}" if info.attempt > 1 else ""
    return f"runs on {info.cluster} with {_size(info)} after {waited:.1f} s{again}"


def _size(info: TaskInfo) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in (info.allocation or {}).items() if amount)


def _live(client: Client, kinds: dict[int, str], console: Console) -> list[TaskInfo]:
    """Show a table that updates itself."""
    from rich.live import Live

    infos: list[TaskInfo] = []
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        for infos in _looks(client, kinds):
            live.update(_table(infos, kinds, console.height), refresh=True)
    return infos


_STYLES = {"queued": "dim", "placed": "yellow", "running": "bold yellow", "finished": "green"}


def _table(infos: list[TaskInfo], kinds: dict[int, str], height: int) -> Table:
    """As many tasks as fit: running and waiting ones before ended ones."""
    from rich import box
    from rich.table import Table

    now = time.time()
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("task", "kind", "phase", "cluster", "gets", "progress", "waited", "ran"):
        table.add_column(head, justify="right" if head in ("task", "waited", "ran") else "left")
    order = {"running": 0, "placed": 1, "queued": 2}
    ranked = sorted(infos, key=lambda i: (order.get(i.phase.value, 3), -(i.ended or 0.0), i.id))
    shown = ranked[: max(3, height - 7)]
    for info in shown:
        begun = info.started if info.started is not None else info.ended or now
        ran = "" if info.started is None else f"{(info.ended or now) - info.started:.1f} s"
        waited = f"{max(0.0, begun - info.submitted):.1f} s"
        phase = info.phase.value
        row = (str(info.id), kinds[info.id], phase, info.cluster or "", _size(info), bar(info.progress), waited, ran)
        table.add_row(*row, style=_STYLES.get(phase, "red"))
    counts = {p: sum(i.phase.value == p for i in infos) for p in dict.fromkeys(i.phase.value for i in infos)}
    hidden = f" ({len(infos) - len(shown)} not shown)" if len(shown) < len(infos) else ""
    table.caption = ", ".join(f"{count} {phase}" for phase, count in counts.items()) + hidden
    return table


def _summary(infos: list[TaskInfo], console: Console) -> None:
    completions = sorted(info.ended - info.submitted for info in infos if info.ended is not None)
    waits = [info.started - info.submitted for info in infos if info.started is not None]
    counts = {p: sum(i.phase.value == p for i in infos) for p in dict.fromkeys(i.phase.value for i in infos)}
    ended = ", ".join(f"{count} {phase}" for phase, count in counts.items())
    text = f"{len(infos)} tasks: {ended}. Mean completion time {sum(completions) / len(completions):.1f} s"
    if waits:
        text += f", of which {sum(waits) / len(waits):.1f} s waiting"
    console.print(f"{text}; the longest took {completions[-1]:.1f} s.", highlight=False, soft_wrap=True)
