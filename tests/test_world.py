"""The ranks of a run share every batch out among them."""

from hypothesis import given
from hypothesis import strategies as st

from pixelpart.world import World

SIZES = st.integers(1, 16)


@given(st.integers(0, 500), SIZES)
def test_the_shares_follow_each_other_and_cover_every_row_once(n, size):
    rows = [row for rank in range(size) for row in range(n)[World(rank, size).slice(n)]]
    assert rows == list(range(n))


@given(st.integers(0, 500), SIZES)
def test_no_share_is_more_than_one_row_larger_than_another(n, size):
    lengths = [len(range(n)[World(rank, size).slice(n)]) for rank in range(size)]
    assert max(lengths) - min(lengths) <= 1


def test_one_process_alone_leads_and_takes_everything():
    assert World().leads
    assert World().slice(7) == slice(0, 7)


def test_only_rank_zero_leads():
    assert [World(rank, 4).leads for rank in range(4)] == [True, False, False, False]
