"""Draft heads: modules, shape, files in every layout, reduced vocabularies."""
