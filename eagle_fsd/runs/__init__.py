"""Run folders: records, settings, provenance, processes."""
