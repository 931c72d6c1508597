"""Benchmarks: ratios of two things done in turn in one run, on the lab. `python -m bench` prints and keeps them."""
