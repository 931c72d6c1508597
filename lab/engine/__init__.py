"""Simulator of a serving engine with one rank on each node, made to be run in place of the real container."""
