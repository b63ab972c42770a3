"""The profile pass: where the seconds of an answer go, its peak memory, its synchronisations.

Separate from the timed pass: a clock that synchronises at every phase slows an accelerator down,
and measuring memory slows everything down.
"""

from eagle_fsd.decoding.loop import decode_rounds
from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.speed.clock import PhaseClock, synchronized_time
from eagle_fsd.speed.resident_memory import PeakResident
from eagle_fsd.speed.synchronization import synchronizations_per_round
from eagle_fsd.speed.timed_arms import Contest, Prompt


def profile_answer(contest: Contest, arm: Arm, prompt: Prompt) -> dict:
    """Answer a prompt two or three times: for the memory (this also warms up the prompt's length),
    on CUDA for the synchronisations, and last under the clock.

    Returns:
        Counts of tokens and rounds; `seconds` of the whole answer under the clock and by phase
        (None for transformers' generate); `peak_memory_bytes` above what was there before;
        `synchronizations_per_round`.
    """
    target = contest.model.target
    contest.release()
    with PeakResident(target.device) as memory:
        contest.answer(arm, prompt)
    clock = waits = None
    if arm.runs_our_loop:
        config = arm.decode_config(contest.sampling, contest.stop(), contest.seed(prompt))
        rounds = decode_rounds(target, contest.drafter(arm), prompt.ids, config)
        waits = synchronizations_per_round(rounds, target.device)
    began = synchronized_time(target.device)
    if arm.runs_our_loop:
        clock = PhaseClock(target.device)
    result, _ = contest.answer(arm, prompt, clock=clock)
    seconds = synchronized_time(target.device) - began
    return {
        "question_id": prompt.question_id,
        "category": prompt.category,
        "context": prompt.context,
        "arm": arm.name,
        "prompt_tokens": len(prompt.ids),
        "tokens": len(result.tokens),
        "rounds": len(result.rounds),
        "round_tokens": sum(len(r.tokens) for r in result.rounds),
        "seconds": seconds,
        "phases": None if clock is None else clock.seconds,
        "peak_memory_bytes": memory.bytes,
        "synchronizations_per_round": waits,
    }
