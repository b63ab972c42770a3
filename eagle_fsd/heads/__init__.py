"""Draft heads: modules, shape, files, foreign layouts."""
