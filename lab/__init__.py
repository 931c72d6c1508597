"""A fleet of simulated DGX Sparks on one Linux machine. Imports nothing from the product."""
