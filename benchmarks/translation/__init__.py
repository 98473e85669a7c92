"""Benchmarks of the translation room: commands that measure the peers and the library on the same sentences."""
