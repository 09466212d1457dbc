"""The machine views that the search considers."""

from __future__ import annotations

from search.views import MAX_VIEWS, candidate_views


def test_candidate_views():
    assert len(candidate_views((2, 2, 2), (0, 8))) == 6
    assert candidate_views((4,), (0, 3)) == ()
    views = candidate_views((2, 1, 2), (4, 12))
    assert len(views) == len(set(views)) == 6
    assert {view.start for view in views} == {4, 8, 12}
    for shape in ((1,), (2, 3), (2, 2, 2, 2), (2, 2, 2, 2, 2), (1, 1)):
        found = candidate_views(shape, (0, 64))
        assert 1 <= len(set(found)) == len(found) <= MAX_VIEWS
        assert all(view.is_injective and max(view.devices) < 64 for view in found)
