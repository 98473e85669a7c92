"""Backends: ways to run one problem, judged by the reference; they never import each other."""
