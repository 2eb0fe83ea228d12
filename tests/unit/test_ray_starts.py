"""A Ray cluster of its own that does not come up at once is started again, and an end is found."""

from __future__ import annotations

import pytest

from tapfinger.parallel import on_ray


class Slow:
    """Ray, of which the first starts time out."""

    def __init__(self, late):
        self.late, self.starts, self.shut = late, 0, 0

    def init(self, **_):
        self.starts += 1
        if self.starts <= self.late:
            raise Exception("The current node timed out during startup.")

    def shutdown(self):
        self.shut += 1


def test_a_late_start_is_tried_again():
    ray = Slow(late=2)
    on_ray._connect(ray, "local")
    assert (ray.starts, ray.shut) == (3, 2)


def test_a_ray_that_never_starts_is_given_up():
    ray = Slow(late=100)
    with pytest.raises(on_ray.RayUnavailable, match=r"did not start, 3 times .*timed out"):
        on_ray._connect(ray, "local")
    assert ray.starts == ray.shut == 3
