"""Targets and heads by name, chat templates, embedded files, random weights."""
