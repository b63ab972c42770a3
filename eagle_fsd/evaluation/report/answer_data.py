"""Answers as page.js reads them, untrusted text and all: a run's, or a traced one alone."""

from collections.abc import Sequence
from itertools import accumulate

from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.runs.folder import answer_key
from eagle_fsd.thoughts import thought_tokens


def pack_answers(run: RunData) -> dict:
    """A run's answers as page.js reads them: {name, greedy, arms, questions}.

    question  {id, choice, category, prompts, answers, scores: one an arm, null where it has none}
    answer    [turn]; turn: {parts: see text_parts, tokens, thought: characters at its front, as
              JavaScript counts them}, and with a trace {first: text, rounds: as in traces.py,
              thought: tokens at its front, whose texts by themselves join to another text}
    scores    {scores: name -> value, the scorer's own first, reference: the right answers}
    """
    questions: dict[tuple, dict] = {}
    for number, (arm, rows) in enumerate(run.records.items()):
        traces = {answer_key(row): row["turns"] for row in run.traces.get(arm, [])}
        for row in rows:
            key = answer_key(row)
            if key not in questions:
                prompts = [turn["prompt"] for turn in row["turns"]]
                questions[key] = {"id": key[0], "choice": key[1], "category": row["category"]}
                questions[key] |= {"prompts": prompts, "answers": [None] * len(run.records)}
                questions[key]["scores"] = [None] * len(run.records)
            answer = [
                {"parts": text_parts(turn), "tokens": len(turn["token_ids"])}
                | {"thought": utf16_units(turn["text"][: turn.get("thought", 0)])}
                for turn in row["turns"]
            ]
            for turn, traced in zip(answer, traces.get(key, []), strict=False):
                turn |= {"first": traced["first"]["text"], "rounds": traced["rounds"]}
                turn["thought"] = traced.get("thought", 0)
            questions[key]["answers"][number] = answer
            scored = run.scored.get(arm, {}).get(key)
            if scored:
                reference = [str(text) for text in scored.get("reference", [])]
                scores = {"scores": scored["scores"], "reference": reference}
                questions[key]["scores"][number] = scores
    greedy = all(row["temperature"] == 0 for row in run.all_records)
    head = {"name": run.name, "greedy": greedy, "arms": list(run.records)}
    return head | {"questions": list(questions.values())}


def pack_answer(
    trace: dict, texts: Sequence[str], *, thought: int, prompt: str, arm: str, greedy: bool
) -> dict:
    """One traced answer of one arm, in the form of pack_answers; `texts` are those of its tokens,
    which join to the answer's, whose first `thought` characters are that."""
    parts = [[texts[0], None]]
    emitted = [token for r in trace["rounds"] for token in r["emitted"]]
    for token, text in zip(emitted, texts[1:], strict=True):
        cost = {"regret": token["regret"], "D": token["divergence"]}
        parts.append([text, cost if token["source"] == "fuzzy" else None])
    turn = {"parts": parts, "tokens": len(parts)}
    turn["thought"] = thought_tokens(thought, accumulate(map(len, texts)))
    turn |= {"first": trace["first"]["text"], "rounds": trace["rounds"]}
    question = {"id": "", "choice": 0, "category": "", "prompts": [prompt]}
    question |= {"answers": [[turn]], "scores": [None]}
    return {"name": "", "greedy": greedy, "arms": [arm], "questions": [question]}


def utf16_units(text: str) -> int:
    """The length of a text in JavaScript."""
    return len(text.encode("utf-16-le", errors="surrogatepass")) // 2


def text_parts(turn: dict) -> list[list]:
    """The answer's text cut at its fuzzy tokens: [text, {regret, D} of a fuzzy token or None]."""
    text, parts, end = turn["text"], [], 0
    costs = [
        {"regret": regret, "D": divergence}
        for r in turn["rounds"]
        for fuzzy, regret, divergence in zip(r["fuzzy"], r["regret"], r["divergence"], strict=True)
        if fuzzy
    ]
    # the last round may hold fuzzy tokens that were trimmed
    for (first, last), cost in zip(turn["fuzzy_spans"], costs, strict=False):
        parts += [[text[end:first], None], [text[first:last], cost]]
        end = last
    return [part for part in [*parts, [text[end:], None]] if part[0]]
