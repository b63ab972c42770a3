"""Acceptance rules, a file a family."""
