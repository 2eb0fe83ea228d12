"""Settings for all tests: the same examples on every run, and no time limit per example (shared machines)."""

from hypothesis import settings

settings.register_profile("tapfinger", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("tapfinger")
