"""Pulumi and its plugins for machines that have none, and the wrapper ``./pulumiw``.

Standard library only: this runs before any virtual environment exists.
"""
