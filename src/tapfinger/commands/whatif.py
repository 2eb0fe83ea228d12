"""``tapfinger what-if``: plays the live site forward, as it is and with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tapfinger.commands.options import StateOption, UrlOption, open_client
from tapfinger.commands.screen import plain_console
from tapfinger.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tapfinger.core.model import Cluster, ResourceTypes
    from tapfinger.evaluation.whatif import Present, Result, Variant
    from tapfinger.live.http.client import Client


def what_if(
    state: StateOption = None,
    url: UrlOption = None,
    scheduler: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another scheduler, with options after @; repeatable.")
    ] = None,
    add_cluster: Annotated[
        list[str] | None, typer.Option(metavar="NAME:cpu=8,gpu=2", help="One more cluster; repeatable.")
    ] = None,
    remove_cluster: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Without this cluster; repeatable.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.0, max=100.0, metavar="FACTOR", help="Arrivals, relative to now.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many futures to play.")] = 3,
    history: Annotated[int, typer.Option(min=1, max=10_000, help="How many ended tasks to look at.")] = 500,
) -> None:
    """Play the live queue, what runs, and a future like the recent past forward; compare configurations."""
    import time

    from rich.text import Text

    from tapfinger.evaluation import live_history, whatif
    from tapfinger.evaluation.specs import parse_spec

    others = [parse_spec(text) for text in scheduler or ()]
    for spec in others:
        spec.create()  # finds faults in its options before any request is sent
    with open_client(state, url) as client:
        told = client.site()
        past = live_history.read_history(told, client.history(history))
        present = whatif.read_present(past, client.clusters(), _alive(client), time.time())
    now = parse_spec(told["scheduler"])
    player = whatif.Player(present)
    variants = [whatif.Variant(f"now: {now.text}", now, present.clusters)]
    changes = [f"+ {text}" for text in add_cluster or ()] + [f"- {name}" for name in remove_cluster or ()]
    changes += [f"rate x {rate:g}"] if rate != 1.0 else []
    if others or changes:
        clusters = _changed(present.clusters, add_cluster or (), remove_cluster or (), past.site.resources)
        for spec in others or [now]:
            label = ", ".join([*([spec.text] if others else []), *changes])
            variants.append(whatif.Variant(label, spec, clusters, rate))
    results: list[list[Result]] = []
    with plain_console(stderr=True).status("") as status:
        for variant in variants:
            results.append([])
            for seed in range(seeds):
                status.update(Text(f"{visible(variant.label)}: future {seed + 1} of {seeds}"))
                results[-1].append(player.play(variant, seed))
    _show(variants, results, present, player.slot_seconds, seeds)


def _alive(client: Client) -> list[dict[str, object]]:
    from tapfinger.core.contract import Phase

    rows: list[dict[str, object]] = []
    before = None
    while True:
        page = client.list([Phase.QUEUED, Phase.PLACED, Phase.RUNNING], 10_000, before)
        for info in page:
            spec = info.spec
            rows.append(
                {
                    "task": info.id,
                    "type": spec.type,
                    "minimum": spec.minimum,
                    "maximum": spec.maximum,
                    "clusters": list(spec.clusters),
                    "submitted": info.submitted,
                    "started": info.started,
                    "cluster": info.cluster,
                    "allocation": info.allocation,
                    "progress": info.progress,
                }
            )
        if len(page) < 10_000:
            return rows
        before = page[-1].id


def _changed(
    clusters: Sequence[Cluster], added: Sequence[str], removed: Sequence[str], resources: ResourceTypes
) -> tuple[Cluster, ...]:
    from tapfinger.core.model import Cluster
    from tapfinger.errors import ConfigError, UnknownNameError

    names = [cluster.name for cluster in clusters]
    for name in removed:
        if name not in names:
            raise UnknownNameError("open cluster", name, names)
    kept = [cluster for cluster in clusters if cluster.name not in removed]
    for text in added:
        name, colon, amounts = text.partition(":")
        if not name or not colon or name in names:
            hint = "a name that is not taken" if name in names else "NAME:cpu=8,gpu=2"
            raise ConfigError(f"--add-cluster {text!r} must look like {hint}")
        try:
            pairs = (part.partition("=") for part in amounts.split(","))
            given = {key.strip(): float(value) for key, _, value in pairs}
        except ValueError:
            raise ConfigError(f"--add-cluster {text!r}: amounts must look like cpu=8,gpu=2") from None
        full = {**dict.fromkeys(resources.names, 0.0), **given}
        kept.append(Cluster(name, resources.parse(full, f"--add-cluster {text}")))
    if not kept:
        raise ConfigError("--remove-cluster leaves no cluster; keep one, or add another")
    return tuple(kept)


def _show(
    variants: Sequence[Variant], results: Sequence[Sequence[Result]], present: Present, slot: float, seeds: int
) -> None:
    from rich import box
    from rich.table import Table

    from tapfinger.live.protocol.words import seconds

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("configuration", overflow="fold")
    for head in ("wait", "completion", "p95", "in use", "queue gone"):
        table.add_column(head, justify="right")
    for variant, found in zip(variants, results, strict=True):
        names = found[0].utilisation
        mean = {name: sum(r.utilisation[name] for r in found) / len(found) for name in names}
        times = (_mean(found, name) for name in ("wait", "completion", "completion_p95"))
        used = ", ".join(f"{name} {share:.0%}" for name, share in mean.items())
        row = (variant.label, *map(seconds, times), used, seconds(_mean(found, "queue_gone")))
        table.add_row(*row)
    console = plain_console()
    console.print(table)
    for line in _assumed(present, variants, results, slot, seeds):
        console.print(line, highlight=False, markup=False)


def _mean(found: Sequence[Result], name: str) -> float:
    return float(sum(getattr(result, name) for result in found)) / len(found)


def _assumed(
    present: Present, variants: Sequence[Variant], results: Sequence[Sequence[Result]], slot: float, seeds: int
) -> list[str]:
    """The assumptions behind the table."""
    from tapfinger.live.protocol.words import seconds

    recent = present.recent
    lines = [
        f"Played: {len(present.waiting)} waiting and {len(present.running)} running tasks, then "
        f"{seconds(present.horizon)} of arrivals like the last {len(recent)} tasks ({60 * present.rate:.3g} per "
        f"minute), until all have ended. Means over {seeds} futures, the same for every line; wait and completion "
        "count from submission.",
        f"Assumed: tasks take exactly as long as profiles and recent tasks say; slots of {seconds(slot)}; none fails, "
        "is cancelled or resized; only clusters that take tasks now; tasks of removed clusters start again.",
    ]
    names = sorted({t.type.family for t in recent})
    unseen = [name for name in names if not present.history.known[name].finished]
    if unseen:
        lines.append(f"No task of type {', '.join(unseen)} has finished yet: its profile is trusted.")
    if not present.rate:
        lines.append("Too little has happened to know a rate of arrivals: nothing more arrives.")
    for text, count in present.left_out.items():
        lines.append(f"Left out: {count} tasks that {text}.")
    for variant, found in zip(variants, results, strict=True):
        if found[0].homeless:
            lines.append(f"{variant.label}: {found[0].homeless} tasks fit no cluster and are left out.")
    return lines
