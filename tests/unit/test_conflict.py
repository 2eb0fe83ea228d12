import pytest
from helpers import R, make_state
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.core.conflict import contest, posterior, resolve
from tapfinger.core.contract import Decision, Placement, Proposal

MINIMUM = {7: R([2, 1]), 8: R([2, 1])}


def settle(free: list[tuple[int, int]], *proposals: Proposal) -> Decision:
    return resolve(proposals, make_state(*free).snapshot().free, MINIMUM)


def wants(cluster: int, task: int = 7, score: float = 1.0) -> Proposal:
    return Proposal(cluster, task, R([2, 1]), score)


def test_posterior_by_hand() -> None:
    # Pr(j|n) = 0.5, 0.2 and 0.3; 4, 8 and 0 copies of the minimum fit: weights 2, 1.6 and 0, sum 3.6.
    assert posterior([0.5, 0.2, 0.3], [4, 8, 0]) == pytest.approx([2 / 3.6, 1.6 / 3.6, 0.0])


def test_posterior_without_any_weight_is_uniform() -> None:
    assert posterior([0.0, 0.0], [3, 4]) == [0.5, 0.5]
    assert posterior([0.4, 0.6], [0, 0]) == [0.5, 0.5]


def test_room_outweighs_a_higher_score() -> None:
    # Cluster 0: 0.6 x 2 copies (4 cpus) = 1.2; cluster 1: 0.2 x 8 copies = 1.6.
    decision = settle([(4, 16), (16, 16)], wants(0, score=0.6), wants(1, score=0.2))
    assert decision.placements == (Placement(7, 1, R([2, 1])),)
    assert [p.cluster for p in decision.lost] == [0]


def test_a_contest_tells_prior_and_posterior() -> None:
    free = make_state((4, 16), (16, 16)).snapshot().free
    found = contest([wants(1, score=0.2), wants(0, score=0.6)], free, MINIMUM[7])
    assert [p.cluster for p in found.rivals] == [0, 1]
    assert found.copies == (2, 8)
    assert found.prior == pytest.approx([0.2, 0.8])
    assert found.posterior == pytest.approx([1.2 / 2.8, 1.6 / 2.8])
    assert found.winner.cluster == 1


def test_a_much_higher_score_outweighs_room() -> None:
    decision = settle([(4, 16), (16, 16)], wants(0, score=0.9), wants(1, score=0.2))
    assert [p.cluster for p in decision.placements] == [0]


@pytest.mark.parametrize("score", [0.5, 0.0])
def test_a_tie_has_exactly_one_winner_the_lowest_cluster(score: float) -> None:
    decision = settle([(16, 16)] * 3, wants(2, score=score), wants(0, score=score), wants(1, score=score))
    assert [p.cluster for p in decision.placements] == [0]
    assert [p.cluster for p in decision.lost] == [1, 2]


def test_winners_keep_their_own_allocation() -> None:
    big = Proposal(1, 7, R([5, 6]), 0.9)
    decision = settle([(16, 16)] * 2, wants(0, score=0.1), big)
    assert decision.placements == (Placement(7, 1, R([5, 6])),)


def test_different_tasks_do_not_compete() -> None:
    decision = settle([(16, 16)] * 2, wants(1, task=7), wants(0, task=8))
    assert decision.placements == (Placement(8, 0, R([2, 1])), Placement(7, 1, R([2, 1])))
    assert not decision.lost


def test_no_proposals_are_a_void_decision() -> None:
    assert settle([(16, 16)]).void


@given(st.lists(st.tuples(st.sampled_from([7, 8]), st.floats(0, 1), st.integers(0, 16)), min_size=1, max_size=6))
def test_every_wanted_task_has_one_winner_and_nobody_is_forgotten(rows: list[tuple[int, float, int]]) -> None:
    proposals = [wants(n, task, score) for n, (task, score, _) in enumerate(rows)]
    decision = settle([(cpu, 16) for _, _, cpu in rows], *proposals)
    assert sorted(p.task for p in decision.placements) == sorted({p.task for p in proposals})
    assert len(decision.placements) + len(decision.lost) == len(proposals)
    for winner in decision.placements:
        rivals = [p for p in proposals if p.task == winner.task]
        weight = {p.cluster: p.score * R([rows[p.cluster][2], 16]).copies_of((2, 1)) for p in rivals}
        assert weight[winner.cluster] == pytest.approx(max(weight.values()))
