"""Attempts that ran out of a resource: they wait for more of it, and so does their family."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live.sites import RealSite
from live.test_machines import Driven
from typer.testing import CliRunner
from waiting import PATIENCE, wait_for

from tapfinger.cli import app
from tapfinger.config import parse_scenario
from tapfinger.core.contract import Phase
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.config import build_site
from tapfinger.live.coordinator import machine, shown_needs
from tapfinger.live.coordinator.inputs import Cancel, Submit, Tick
from tapfinger.live.coordinator.shown_needs import ShownNeeds, next_amount
from tapfinger.live.coordinator.site import Site
from tapfinger.live.http.client import make_spec
from tapfinger.live.insight.explain import rests
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import RanShort
from tapfinger.live.protocol.messages import Launch, Outcome, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.store.store import NEEDS, Store

SHORT = Outcome("failed", -9, "it used more memory than it was granted", short="memory")
SPEC = TaskSpec(("work",), "train")
SITE: dict[str, Any] = {
    "clusters": [
        {"name": "c0", "capacity": {"cpu": 8, "gpu": 0, "memory": 64}},
        {"name": "c1", "capacity": {"cpu": 8, "gpu": 0, "memory": 64}},
        {"name": "c2", "capacity": {"cpu": 8, "gpu": 0, "memory": 24}},
    ],
    "resources": {"cpu": {}, "gpu": {}, "memory": {"unit": 2}},
    "task_types": [
        {
            "name": name,
            "minimum": {"cpu": 1, "gpu": 0, "memory": 4},
            "maximum": {"cpu": 1, "memory": most},
            "speed": {"kind": "constant", "seconds": 20},
            "needs": {"memory": 10},  # nobody looks at it
        }
        for name, most in (("train", 40), ("test", 40))
    ],
}


def site() -> Site:
    return build_site(parse_scenario({"name": "site", "mode": "multi", "slot_seconds": 1.0, **SITE}))


def driven(*specs: TaskSpec, owner: str = "ann") -> Driven:
    made = Driven(site=site())
    made.report(0.0)
    made.tell(Submit(specs, owner), 0.1)
    made.tell(Tick(), 0.2)
    return made


def held(found: Driven, task: int = 1) -> float:
    return 2.0 * (found.machine.tasks[task].allocation or ())[2]


def run_out(found: Driven, now: float, task: int = 1, outcome: Outcome = SHORT) -> TaskRecord:
    found.report(now, *(RunReport(r.attempt_id, outcome if r.id == task else None) for r in running(found)))
    return found.saved[task]


def running(found: Driven) -> list[TaskRecord]:
    return [record for record in found.machine.tasks.values() if record.on_cluster]


def again(found: Driven, now: float) -> float:
    """Report until task 1 is granted again; returns when that was."""
    while not found.machine.tasks[1].on_cluster:
        now += 0.5
        found.report(now, *(RunReport(record.attempt_id) for record in running(found)))
        found.tell(Tick(), now)
    return now


def least(found: Driven, task: int) -> float:
    """Memory that a waiting task gets at least, as schedulers see it."""
    return next(2.0 * view.type.minimum[2] for view in found.machine.snapshot.queue if view.id == task)


def test_a_task_waits_for_twice_as_much_until_it_has_the_most_it_may_get() -> None:
    found, now, amounts = driven(SPEC), 0.2, []
    while 1 in found.machine.tasks:
        amounts.append(held(found))
        record = run_out(found, now)
        if record.phase is Phase.QUEUED:
            assert (record.failures, record.losses, record.setbacks) == (0, 0, len(amounts))
            assert record.not_before > now, "it rests like others"
            now = again(found, now)
    assert amounts == [4.0, 8.0, 16.0, 32.0, 40.0]
    assert len(amounts) <= math.log2(40 / 4) + 2
    assert (record.phase, record.failures, record.reason) == (Phase.FAILED, 1, SHORT.reason)
    told = [line for line in found.history if isinstance(line, RanShort)]
    assert [(line.held, line.least) for line in told] == [(4, 8), (8, 16), (16, 32), (32, 40)]
    assert words.detail(told[0]).startswith("4 memory were not enough: from now on it gets at least 8")


def test_retries_are_for_failures() -> None:
    found = driven(TaskSpec(("work",), "train", retries=1))
    run_out(found, 0.2)
    now = again(found, 0.2)
    record = run_out(found, now, outcome=Outcome("failed", 1))
    assert (record.failures, record.phase) == (1, Phase.QUEUED)
    record = run_out(found, again(found, now), outcome=Outcome("failed", 1))
    assert (record.failures, record.phase) == (2, Phase.FAILED)


def test_what_one_has_shown_counts_for_its_family() -> None:
    away = {"clusters": ("c1",)}  # without an agent, so that all of these wait
    own, plain = TaskSpec(("work",), "train", maximum={"memory": 6}, **away), TaskSpec(("work",), "train", **away)
    small = TaskSpec(("work",), "train", clusters=("c2",))
    found = driven(SPEC, SPEC)
    found.tell(Submit([own, plain, small, TaskSpec(("work",), "test", **away)], "ann"), 0.3)
    found.tell(Submit([plain], "bob"), 0.3)
    run_out(found, 0.4)
    now = again(found, 0.4)
    assert run_out(found, now).least == {"memory": 16.0}
    assert held(found, 2) == 4.0, "what runs stays as it is"
    assert [least(found, task) for task in (3, 4, 5, 6, 7)] == [6.0, 16.0, 16.0, 4.0, 4.0]
    found.tell(Submit([plain, small], "ann"), now)
    assert [least(found, task) for task in (8, 9)] == [16.0, 16.0], "later ones, too"
    assert run_out(found, again(found, now)).least == {"memory": 32.0}
    assert [least(found, task) for task in (5, 9)] == [24.0, 24.0], "more than that has none of their clusters"


def test_a_long_queue_of_a_family_is_changed_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else 100,000 waiting tasks would keep the loop with the leases busy for a second."""
    monkeypatch.setattr(machine, "RAISED_AT_ONCE", 3)
    found = driven(SPEC)
    found.tell(Submit([replace(SPEC, clusters=("c1",))] * 8, "ann"), 0.3)
    found.tell(Cancel(7), 0.3)
    record = run_out(found, 0.4)

    def changed() -> list[int]:
        return [task for task in (2, 3, 4, 5, 6, 8, 9) if task in found.machine.tasks and least(found, task) == 8.0]

    assert record.least == {"memory": 8.0}
    assert changed() == [2, 3, 4], "the oldest first"
    assert found.machine.next_due < 0.0, "the next turn comes at once"
    assert not found.machine.wants_round
    found.tell(Cancel(5), 0.4)
    found.tell(Tick(), 0.4)
    assert changed() == [2, 3, 4, 6, 8]
    found.tell(Tick(), 0.4)
    assert changed() == [2, 3, 4, 6, 8, 9]
    assert found.machine.next_due == record.not_before
    assert [view.id for view in found.machine.snapshot.queue] == [2, 3, 4, 6, 8, 9], "at their old places"
    assert again(found, 0.5) > 0.5


def test_a_task_gets_no_more_than_one_of_its_clusters_has() -> None:
    found = Driven(site=site())
    found.report(0.0, cluster="c2")
    found.tell(Submit([TaskSpec(("work",), "train", clusters=("c2",))]), 0.1)
    found.tell(Tick(), 0.2)
    now, amounts = 0.3, []
    while 1 in found.machine.tasks:
        if found.machine.tasks[1].on_cluster:
            amounts.append(held(found))
            found.report(now, RunReport(found.machine.tasks[1].attempt_id, SHORT), cluster="c2")
        now += 1.0
        found.report(now, cluster="c2")
        found.tell(Tick(), now)
    assert amounts == [4.0, 8.0, 16.0, 24.0]
    assert found.saved[1].phase is Phase.FAILED


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("failed", -9, short="licences"),
        Outcome("failed", -9, short="gpu"),  # it had none, and may have none
        Outcome("failed", -9),
    ],
)
def test_anything_else_is_a_failure(outcome: Outcome) -> None:
    assert run_out(driven(SPEC), 0.2, outcome=outcome).phase is Phase.FAILED


@pytest.mark.parametrize("result", ["finished", "stopped", "lost"])
def test_only_failures_count(result: Any) -> None:
    found = driven(SPEC)
    record = run_out(found, 0.2, outcome=Outcome(result, 0, short="memory"))
    assert not record.least
    assert not found.machine.snapshot.queue


def test_a_cancelled_task_shows_nothing() -> None:
    found = driven(SPEC)
    found.tell(Cancel(1), 0.2)
    assert run_out(found, 0.3).phase is Phase.CANCELLED
    assert not found.site.needs.kept


def test_a_late_result_counts() -> None:
    found = driven(SPEC)
    run_out(found, 0.2, outcome=Outcome("lost"))
    found.report(0.4, RunReport((1, 1), SHORT))
    assert found.saved[1].least == {"memory": 8.0}
    assert (found.saved[1].losses, found.saved[1].failures) == (0, 0)


def test_all_of_it_survives_a_restart(tmp_path: Path) -> None:
    found = driven(SPEC, SPEC, SPEC)
    run_out(found, 0.2)
    store = Store(tmp_path / "store.db")
    store.lead("http://here")
    store.save(found.saved.values(), found.history, {NEEDS: found.site.needs.kept})
    records, needs = store.unended(), store.meta(NEEDS)
    assert [record.least for record in records] == [{"memory": 8.0}, {}, {}]
    assert store.history(0, 1000)[-2][1] == found.history[-2]
    store.close()
    after = Driven(records, epoch=2, site=site(), needs=needs)
    assert held(after, 2) == 4.0, "what runs has what it was granted"
    after.tell(Submit([SPEC], "ann"), 3.0)
    after.tell(Tick(), 3.0)
    assert [least(after, task) for task in (1, 4)] == [8.0, 8.0]
    assert "memory" in rests(found.saved[1], 0.3)


def test_few_families_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_needs, "MOST", 2)
    needs = ShownNeeds()
    for owner in ("a", "b", "a", "c"):
        needs.learn(owner, "t", {"memory": 8.0 + len(needs.kept)})
    assert [owner for owner, _, _ in needs.kept] == ["a", "c"]
    assert not needs.learn("c", "t", {"memory": 1.0})


def test_amounts_double_from_the_minimum() -> None:
    assert [next_amount(3, held) for held in (0, 3, 4, 6, 7)] == [3, 6, 12, 12, 24]
    assert next_amount(0, 0) == 1


def test_the_fake_backend_runs_out_as_told(tmp_path: Path) -> None:
    backend, env = Fake(), {"FAKE_SECONDS": "0", "FAKE_NEEDS": "memory=8"}
    for memory, result in ((4.0, "failed"), (8.0, "finished")):
        run = Run(Launch((int(memory), 1), ("x",), {"memory": memory}, env), tmp_path)
        backend.start(run)
        end = backend.poll(run)
        assert end is not None
        assert (end.result, end.short) == (result, "memory" if result == "failed" else "")


def test_a_site_gives_more_and_remembers(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    config = site.config.read_text().replace('scheduler = "fifo"', 'scheduler = "min"')
    site.config.write_text(config + '[live.backend]\nkind = "fake"\n')
    spec = make_spec(argv=["x"], type="demo", env={"FAKE_SECONDS": "0.1", "FAKE_NEEDS": "cpu=2"})
    try:
        client = site.up()
        (task,) = client.submit(spec)
        info = client.wait(task, PATIENCE)
        assert (info.phase, info.attempt, info.failures, info.least) == (Phase.FINISHED, 2, 0, {"cpu": 2.0})
        (told,) = [line for line in info.history if line["kind"] == "out of memory"]
        assert told["data"] == {"resource": "cpu", "held": 1.0, "least": 2.0}
        shown = CliRunner().invoke(app, ["show", str(task), "--state", str(site.state)]).output
        assert "gets at least 2 cpu: an attempt ran out with less" in shown
        site.kill("coordinator")
        client = site.serve()
        big = make_spec(argv=["x"], type="demo", minimum={"cpu": 4}, env={"FAKE_SECONDS": "600"})
        blocked = client.submit(big, big)
        wait_for(lambda: client.counts().get("running") == 2)
        (task,) = client.submit(spec)
        said = client.explain(task)["summary"]
        assert "It gets at least 2 cpu, as far as it may, since another demo task of " in said
        client.cancel(blocked[0])
        assert client.wait(task, PATIENCE).attempt == 1
    finally:
        site.close()
