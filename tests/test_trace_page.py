"""The page of an answer's draft trees, from a trace that is written out by hand."""

import re
from html import unescape

from eagle_fsd.evaluation.trace_page import trace_page


def token(text: str, **more) -> dict:
    return {"token": 7, "text": text} | more


def draft(text: str, parent: int, target_prob: float, draft_prob: float | None) -> dict:
    return token(text, parent=parent, target_prob=target_prob, draft_prob=draft_prob)


# root "A" -> " <b>" -> "\n", and "A" -> " z"; " <b>" is accepted, "\n" in the place of "!"
ROUND = {
    "nodes": [
        token("A", parent=-1, target_prob=None, draft_prob=None),
        draft(" <b>", 0, 0.7, 0.6),
        draft(" z", 0, 0.2, 0.3),
        draft("\n", 1, 0.25, None),
    ],
    "path": [0, 1, 3],
    "emitted": [
        token(" <b>", source="draft", divergence=0.1, regret=0.0, best=" <b>", best_prob=0.7)
        | {"target_prob": 0.7, "draft_prob": 0.6},
        token("\n", source="fuzzy", divergence=0.3, regret=0.5, best="!", best_prob=0.5)
        | {"target_prob": 0.25, "draft_prob": None},
        token("C", source="target", divergence=None, regret=0.0, best="C", best_prob=0.9)
        | {"target_prob": 0.9, "draft_prob": None},
    ],
}
PIECES = [("A", False, 0), (" <b>", False, 1), ("\n", True, 1), ("C", False, 1)]


def shown(part: str) -> list[str]:
    """The words of every box of a drawing, lines joined."""
    boxes = re.findall("<g class=.*?</g>", part, re.S)
    return [unescape(re.sub("<title>.*?</title>|<[^>]+>|\\s+", " ", box)) for box in boxes]


def test_a_round_is_drawn_as_it_was():
    """Every draft with its text and probabilities, what became of it, and the token that follows;
    texts are escaped, and white space is seen."""
    page = trace_page({"first": token("A"), "rounds": [ROUND]}, PIECES, facts={"prompt": "<i>"})
    (drawing,) = re.findall("<svg.*?</svg>", page, re.S)
    boxes = [" ".join(box.split()) for box in shown(drawing)]
    assert boxes == [
        "A root",
        "␣<b> target 0.70, draft 0.60 accepted, divergence 0.100",
        "␣z target 0.20, draft 0.30 not accepted",
        "↵ target 0.25 fuzzy, divergence 0.300",
        "C target 0.90 next token",
    ]
    assert re.findall('<g class="(.+?)">', drawing) == "root accepted rejected fuzzy next".split()
    assert drawing.count("<path ") == 4  # every box but the root's hangs on its parent's
    assert "<b>" not in page and "<i>" not in page and "&lt;i&gt;" in page
    assert "Round 1: 2 of 3 drafts were accepted, 1 of them fuzzy" in page


def test_a_token_links_to_the_round_that_emitted_it():
    page = trace_page({"first": token("A"), "rounds": [ROUND]}, PIECES, facts={})
    assert page.count('href="#round-1"') == 3 and page.count('id="round-1"') == 1
    assert page.count('<a class="fuzzy"') == 1
    assert "prefers-color-scheme: dark" in page and "http" not in page


def test_an_answer_of_one_token_has_no_round():
    page = trace_page({"first": token("A"), "rounds": []}, PIECES[:1], facts={})
    assert "<svg" not in page and "ended with the token of prefill" in page
