"""What the dashboard is told: it must agree with the store, however much goes wrong, and stay small."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from live.protocol import World

from tapfinger.core.contract import Phase
from tapfinger.core.model import ResourceTypes
from tapfinger.live.insight import overview as module
from tapfinger.live.insight.overview import LABEL, Overview, label
from tapfinger.live.protocol import events
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.store.store import Store


def saved(world: World, path: Path) -> Store:
    """A store with what a simulated site has recorded."""
    store = Store(path)
    store.save(world.disk.records.values(), world.disk.history)
    return store


def expected(store: Store) -> Counter[str]:
    counts = Counter(store.counts())
    return Counter(
        waiting=counts["queued"],
        running=counts["placed"] + counts["running"],
        **{kind: counts[kind] for kind in ("finished", "failed", "cancelled", "lost")},
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("look_back", [20_000, 60])
def test_it_agrees_with_the_store_through_every_trouble(
    tmp_path: Path, seed: int, look_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_BACK", look_back)
    world = World(seed)
    for _ in range(150):
        world.step()
    store = saved(world, tmp_path / "store.db")
    overview = Overview(store, ResourceTypes())
    overview.catch_up()
    whole = overview.since(0)
    assert whole["whole"]
    assert Counter(whole["counts"]) == expected(store)
    assert whole["points"][-1][1:] == [whole["counts"]["waiting"], whole["counts"]["running"]]
    assert min(min(point[1:]) for point in whole["points"]) >= 0
    on_clusters = {r.attempt_id: r for r in world.disk.records.values() if r.on_cluster}
    alive = {(run["task"], run["attempt"]): run for run in whole["runs"] if run["ended"] is None}
    assert set(alive) == set(on_clusters), "also those that began before the lines that were read"
    for ident, run in alive.items():
        record = on_clusters[ident]
        assert (run["cluster"], run["type"]) == (record.cluster, record.spec.type)
        assert tuple(run["size"].values()) == record.allocation
    ends = {run["task"]: run["result"] for run in whole["runs"] if run["final"]}
    assert all(world.disk.records[task].phase.value == result for task, result in ends.items())


def test_only_what_has_changed_is_told_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    records = [TaskRecord(n, TaskSpec(("x",), "t"), "me", 1.0) for n in (1, 2)]
    store.save(records, [events.Submitted(1.0, n) for n in (1, 2)])
    overview = Overview(store, ResourceTypes())

    def told(*lines: events.LiveEvent, after: int) -> dict[str, Any]:
        store.save((), lines)
        overview.catch_up()
        return overview.since(after)

    told(after=0)
    assert overview.since(0)["counts"]["waiting"] == 2
    news = told(events.Granted(2.0, 1, 1, "c", {"cpu": 2.0, "memory": 0.5}), after=2)
    assert (news["whole"], news["counts"]["waiting"], news["counts"]["running"]) == (False, 1, 1)
    (run,) = news["runs"]
    assert (run["size"], run["ended"], run["label"]) == ({"cpu": 2.0, "memory": 0.5}, None, "x")
    assert [event.kind for _, event in news["events"]] == ["granted"]
    news = told(after=3)
    assert (news["runs"], news["points"], news["events"]) == ([], [], [])
    news = told(events.AttemptEnded(9.0, 1, 1, "c", "failed"), events.Requeued(9.0, 1, 1), after=3)
    assert [(r["ended"], r["result"], r["final"]) for r in news["runs"]] == [(9.0, "failed", False)]
    assert news["points"] == [[9.0, 2, 0]]
    assert overview.since(99)["whole"], "whoever knows of what never was begins anew"


def test_it_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS", 10)
    store = Store(tmp_path / "store.db")
    spec = TaskSpec(("x",), "t", name="n" * 200)
    records = [
        TaskRecord(n, spec, "me", 1.0, Phase.FINISHED if n > 3 else Phase.RUNNING, 1, ended=3.0 if n > 3 else None)
        for n in range(1, 51)
    ]
    lines: list[events.LiveEvent] = [events.Submitted(1.0, n) for n in range(1, 51)]
    for n in range(1, 51):
        lines.append(events.Granted(10.0 * n, n, 1, "c", {"cpu": 1.0}))
        if n > 3:
            at = 10.0 * n + 5
            lines += [events.AttemptEnded(at, n, 1, "c", "finished"), events.ClosedFinished(at, n, 1, "c")]
    store.save(records, lines)
    overview = Overview(store, ResourceTypes())
    overview.catch_up()
    runs = overview.since(0)["runs"]
    assert [run["task"] for run in runs] == [1, 2, 3, *range(44, 51)], "what runs is never forgotten"
    assert {len(run["label"]) for run in runs} == {LABEL}


def test_a_label_is_one_line() -> None:
    def of(*argv: str, name: str = "") -> str:
        return label(TaskRecord(1, TaskSpec(argv, "t", name=name), "me", 1.0))

    assert of("python3", "-c", "a\n  b") == "python3 -c a b"
    assert of("x", name=" a name ") == "a name"
    assert of(*["word"] * 5000).endswith("…")


def test_the_queue_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store.db")
    counted: list[dict[str, int]] = []
    real = store.counts
    monkeypatch.setattr(store, "counts", lambda: counted.append(real()) or real())
    overview = Overview(store, ResourceTypes())
    for n in range(1, 4):
        store.save([TaskRecord(n, TaskSpec(("x",), "t"), "me", 1.0)], [events.Submitted(1.0, n)])
        overview.catch_up()
        assert overview.since(0)["counts"]["waiting"] == n
    assert len(counted) == 1
