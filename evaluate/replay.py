"""Replay: judge heads and drafters on the target's own text, without decoding.

    python evaluate/replay.py                                  # shipped head on 80 MT-Bench turns
    python evaluate/replay.py --heads runs/a runs/b --questions 24 --max_new_tokens 64 \
        --arms exact exact@eagle:59x6x10 exact@hybrid --output runs/replay_ab

Greedy exact decoding emits the target's own text whatever the head, so the plain answers are made
once (--texts, shared by all heads and runs of a target) and each head is replayed on them:
tokens_per_round of every drafter as real float32 decoding gives it (logit ties aside), and the
heads' accuracy and divergence by level. A killed run continues where it was: run the same command
again. More questions and heads may be added.
"""

from eagle_fsd.cli import run_command
from eagle_fsd.evaluation.replay import ReplayOptions, run_replay

if __name__ == "__main__":
    run_command(run_replay, [ReplayOptions])
