"""Benchmarks: commands that time the library against named peers and keep the result as JSON."""
