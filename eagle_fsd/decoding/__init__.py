"""The loop and what it runs: trees, the target, divergences, sampling, acceptance. Read these first."""
