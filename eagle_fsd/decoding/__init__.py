"""The loop and what it runs: trees, target, divergences, sampling, acceptance. Read it first."""
