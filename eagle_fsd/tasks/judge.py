"""FastChat's MT-Bench judge: what it is asked about a run's answers, and how its replies are read.

The choice and filling of prompts are those of fastchat/llm_judge/gen_judgment.py and common.py
(fschat 0.2.36) in the mode that rates one answer at a time; these cannot be imported beside a
current openai package. Of a reply FastChat takes the first mark, whatever it is of.
"""

import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm
from tqdm.contrib.concurrent import thread_map

from eagle_fsd.config import BadInput, one_line, step_of_setup
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.runs.folder import Run, records_by_arm
from eagle_fsd.runs.jsonl import read_records
from eagle_fsd.runs.provenance import digest
from eagle_fsd.thoughts import answer_of, without_thought

with step_of_setup("tasks"):
    import openai

PARAMETERS = {"temperature": 0, "max_tokens": 2048}  # FastChat's
# for an endpoint that takes no max_tokens, since this counts the judge's thought as well
WITH_THOUGHT = {"max_completion_tokens": 8192}
REFUSED = re.compile(r"support|permit|allow|deprecat|unknown|unrecogni[sz]ed|unexpected", re.I)
NUMBER = r"(\d+\.?\d*)"
RATING = r"(?i)(?<![\"'`\u201c])\brating\W{0,6}?"  # not the prompt's own example, quoted
# what a reply may have as its verdict; the first form that it has any of counts
MARKS = (rf"{RATING}\[\[{NUMBER}\]\]", rf"\[\[{NUMBER}\]\]")
MARKS += (rf"{RATING}\[{NUMBER}\]", rf"\[{NUMBER}\]\W*$")
TOP_RATING = 10  # of FastChat's scale
CONCURRENCY = 4  # requests at a time
SECONDS, RETRIES = 120.0, 8  # the time limit of an attempt, and how many follow a failed one


def read_requests(run_folder: Path) -> list[dict]:
    """All requests about a run, question by question, so that a part of them compares the arms; the
    digest of each is of all the rest: verdicts on other answers or prompts differ by it."""
    data = asset_dir("mt_bench")
    prompts = {row["name"]: row for _, row in read_records(data / "judge_prompts.jsonl")}
    by_gpt4 = {
        row["question_id"]: row["choices"][0]["turns"]
        for _, row in read_records(data / "reference_answer" / "gpt-4.jsonl")
    }
    # GPT-4's for math, reasoning and coding; by text: another file's questions may have its ids
    references = {
        question.turns[0]: by_gpt4.get(question.question_id, [])
        for question in read_questions(data / "question.jsonl")
    }
    records = [record for rows in records_by_arm(run_folder).values() for record in rows]
    order = list(dict.fromkeys(record["question_id"] for record in records))
    records.sort(key=lambda record: order.index(record["question_id"]))
    requests = []
    for record in records:
        turns = record["turns"]
        reference = references.get(turns[0]["prompt"], [])
        values = {"question": turns[0]["prompt"], "answer": answer_of(turns[0])}
        for number, turn in enumerate(turns, start=1):
            values |= {f"question_{number}": turn["prompt"], f"answer_{number}": answer_of(turn)}
        for number, text in enumerate(reference, start=1):
            values[f"ref_answer_{number}"] = text
        for turn in (1, 2) if len(turns) == 2 else (1,):  # as FastChat does
            name = "single-math-v1" if reference else "single-v1"
            prompt = prompts[name + ("-multi-turn" if turn == 2 else "")]
            request = {
                "question_id": record["question_id"],
                "choice": record.get("choice", 0),
                "turn": turn,
                "arm": record["arm"],
                "prompt": prompt["name"],
                "messages": [
                    {"role": "system", "content": prompt["system_prompt"]},
                    {"role": "user", "content": prompt["prompt_template"].format(**values)},
                ],
            }
            requests.append(request | {"digest": digest(request)})
    return requests


def parse_rating(reply: str) -> float | None:
    """The verdict behind the judge's thought; None without one on the scale of 0 to 10.

    The prompts ask for an explanation and behind it 'strictly' for "Rating: [[5]]". So it is the
    last mark behind that word, since what else is marked was weighed or quoted; else the last mark,
    since what stands before was explained; else, as FastChat has it, one in single brackets, but
    behind that word or at the end, since others cite.

    Example: of "<think>[[3]]?</think> Not [[10]]: [[9]]" it is 9, where FastChat's is 3.
    """
    text = without_thought(reply)
    for form in MARKS:
        ratings = [mark for mark in map(float, re.findall(form, text)) if mark <= TOP_RATING]
        if ratings:
            return ratings[-1]
    return None


def judge_all(model: str, requests: list[dict], verdicts: Run) -> None:
    """Ask the endpoint that OPENAI_BASE_URL names (unset: OpenAI's), several requests at a time.

    A record a reply is added to the run's "single": the request without its messages, the reply,
    time, and the error where the endpoint refused this prompt, as where a filter takes offence.
    Where its error names a parameter that it does not take, this and all others go without it. The
    client tries again what may pass: connections, time limits, and the statuses 408, 409, 429 and
    from 500. Any other failure ends the judging once what is under way is on disk.
    """
    try:
        _ = urlsplit(os.environ.get("OPENAI_BASE_URL", "")).port  # ValueError: it is no number
        client = openai.OpenAI(timeout=SECONDS, max_retries=RETRIES)
    except (openai.OpenAIError, ValueError):  # not repeated: it may hold a password
        raise BadInput(
            "OPENAI_API_KEY is not set, or OPENAI_BASE_URL is no address: export the endpoint's "
            "key (for a local server any word), and an address such as http://localhost:8000/v1"
        ) from None

    parameters = dict(PARAMETERS)

    def ask(messages: list[dict]) -> tuple[openai.types.chat.ChatCompletion, dict]:
        while True:
            given = dict(parameters)
            asked = {"model": model, "messages": messages} | given
            try:
                return client.chat.completions.create(**asked), given
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                name = next((name for name in given if name in str(error.param or error)), "")
                if not name or not REFUSED.search(str(error)):
                    raise
                if parameters.pop(name, None) is not None:  # the first of those under way
                    parameters.update(WITH_THOUGHT if name == "max_tokens" else {})
                    tqdm.write(f"the judge does not take {name} {given[name]}: asking without it")

    def judge(request: dict) -> None:
        record = {key: value for key, value in request.items() if key != "messages"}
        reply, refusal, given = "", None, dict(parameters)
        try:
            completion, given = ask(request["messages"])
            content = completion.choices[0].message.content or ""
            if isinstance(content, list):  # in parts, of which thoughts are no text
                content = "".join(part["text"] for part in content if part["type"] == "text")
            # JSON may hold half a surrogate pair, which no file takes
            reply = content.encode(errors="replace").decode()
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            refusal = str(error)
        # what is no OpenAI endpoint may answer with a page, or with JSON without choices
        except (openai.OpenAIError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise BadInput(
                f"the judge {model} failed: {one_line(error):.400}; see that it is up and "
                "OpenAI-compatible, that OPENAI_BASE_URL and --model are what it expects, and "
                "OPENAI_API_KEY its key. What it has said is on disk: the same command goes on "
                "from there"
            ) from error
        record |= given | {"reply": reply, "error": refusal, "time": time.time()}
        verdicts.add("single", record)

    verdicts.begin_session()
    # after a failure those under way end, and the others are not begun
    thread_map(judge, requests, max_workers=CONCURRENCY, unit="reply", desc="judge")
