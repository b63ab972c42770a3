"""MT-Bench's judge: FastChat's protocol (fschat 0.2.36, llm_judge), asked of any OpenAI endpoint.

prompts.py    which prompt a question gets, its text, and the verdict in a reply
matches.py    what is to be judged: answers of a run, alone or against a baseline
endpoint.py   one request, with its retries
ledger.py     the files of verdicts; what is asked once is not asked again
sessions.py   the launches: where they asked, at what prices
asking.py     the open requests, several at a time
scores.py     figures and tables
"""

from eagle_fsd.tasks.judge.judge_scores import judge_scores

__all__ = ["judge_scores"]
