"""Property tests look at the same cases in every run, and a busy machine fails none of them."""

from hypothesis import settings

settings.register_profile("unit", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("unit")
