"""One HTML page of an answer's draft trees, round by round, from its trace (traces.TurnTrace).

The page is one file that needs no network: HTML and SVG with their own style, for light and dark.
Everything that models wrote is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

Piece = tuple[str, bool, int]  # api.Answer.pieces
WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 54, 30, 8  # of a box and between boxes, in pixels
LETTERS = 22  # of a token in its box; the box's tooltip has all of it
SEEN = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"})
KINDS = {
    "root": "root",
    "accepted": "accepted",
    "fuzzy": "fuzzy",
    "rejected": "not accepted",
    "next": "next token",
}

HOW_TO_READ = """
In every round the draft model proposes a tree of tokens, and the target rates all of them in one
forward. The root is the last token of the answer so far, and a box to the right of another is a
draft that would follow it. <em>target</em> and <em>draft</em> are the probabilities that the
target and the draft model give to the token there; a draft that was looked up in the text has no
probability of the draft model's. A <em>fuzzy</em> draft was accepted too, although the exact test
would have emitted another token in its place. <em>divergence</em> is how far the distributions of
the two models are apart there. The <em>next token</em>, which ends the round, is the target's own,
and it is the root of the next round.
"""

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1b1b; --soft: #595959; --line: #c8c8c8;
  --box: #f4f4f4; --accepted: #e3f0fa; --accepted-line: #0072b2; --fuzzy: #ffd9a0;
  --fuzzy-line: #b34700; }
@media (prefers-color-scheme: dark) { :root { --page: #15171a; --ink: #ececec; --soft: #a9adb3;
  --line: #44484e; --box: #202328; --accepted: #16303f; --accepted-line: #56b4e9; --fuzzy: #6b3f00;
  --fuzzy-line: #ffb347; } }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .6rem; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; }
dt { color: var(--soft); }
dd, .answer { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.answer { line-height: 2; padding: .5rem .7rem; border-left: 3px solid var(--line); }
.answer a { color: inherit; text-decoration: none; }
.answer a:hover { text-decoration: underline; }
.answer a.fuzzy { background: var(--fuzzy); border-bottom: 3px double var(--fuzzy-line); }
.answer .border { color: var(--soft); font-weight: 600; }
p { max-width: 60rem; } .tree { overflow-x: auto; }
svg text { fill: var(--ink); font: 13px ui-monospace, monospace; }
svg text.small { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg rect { fill: var(--box); stroke: var(--line); }
svg path { fill: none; stroke: var(--line); stroke-width: 1.5; }
svg .root rect, svg .accepted rect { fill: var(--accepted); stroke: var(--accepted-line);
  stroke-width: 2; }
svg .fuzzy rect { fill: var(--fuzzy); stroke: var(--fuzzy-line); stroke-width: 3; }
svg .next rect { fill: var(--page); stroke: var(--soft); stroke-width: 2; stroke-dasharray: 3 3; }
svg .accepted text.small, svg .fuzzy text.small { fill: var(--ink); }
svg path.accepted { stroke: var(--accepted-line); stroke-width: 3; }
svg path.fuzzy { stroke: var(--fuzzy-line); stroke-width: 3; stroke-dasharray: 7 3; }
svg path.next { stroke: var(--soft); stroke-width: 2; stroke-dasharray: 3 3; }
"""


def trace_page(trace: Mapping, pieces: Sequence[Piece], *, facts: Mapping[str, str]) -> str:
    """The page as text.

    Args:
        trace: {first, rounds}, of traces.TurnTrace.
        pieces: the answer's text, token by token.
        facts: what stands above the answer, by its name, such as the prompt and the arm.
    """
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in facts.items())
    rounds = [_section(number, of) for number, of in enumerate(trace["rounds"], start=1)]
    rounds = rounds or ["<p>The answer ended with the token of prefill, before any round.</p>"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Draft trees of an answer</title>\n<style>{STYLE}</style></head>\n<body>\n"
        f"<h1>Draft trees of an answer</h1>\n<dl>{rows}</dl>\n"
        f'<p class="answer">{_answer(pieces)}</p>\n'
        "<p>A | stands between rounds, and fuzzy tokens are shaded. Every token leads to the round "
        f"that emitted it.</p>\n<p>{HOW_TO_READ}</p>\n" + "\n".join(rounds) + "\n</body></html>\n"
    )


def _answer(pieces: Iterable[Piece]) -> str:
    """The answer's text with its fuzzy tokens marked, a border in front of every round."""
    parts, last = [], 0
    for text, fuzzy, number in pieces:
        if not text:
            continue
        if number != last:
            parts.append('<span class="border">|</span>')
        last = number
        kind = ' class="fuzzy"' if fuzzy else ""
        link = f'<a{kind} href="#round-{number}">{escape(text)}</a>'
        parts.append(link if number else escape(text))  # prefill is no round
    return "".join(parts)


def _section(number: int, of: Mapping) -> str:
    """A round: its heading, what it emitted, and its tree."""
    nodes = _nodes(of)
    kinds = [node["kind"] for node in nodes]
    fuzzy = kinds.count("fuzzy")
    accepted, drafts = kinds.count("accepted") + fuzzy, len(of["nodes"]) - 1
    were = "was" if accepted == 1 else "were"
    text = f"{accepted} of {drafts} drafts {were} accepted" if drafts else "nothing was drafted"
    text += f", {fuzzy} of them fuzzy" if fuzzy else ""
    emitted = " ".join(
        f"<code>{escape(made['text'].translate(SEEN))}</code>" for made in of["emitted"]
    )
    return (
        f'<section id="round-{number}"><h2>Round {number}: {text}</h2>\n'
        f'<p>It emitted {emitted}</p>\n<div class="tree">{_drawing(nodes)}</div></section>'
    )


def _nodes(of: Mapping) -> list[dict]:
    """The boxes of a round: the tree's nodes, and behind the accepted path the token of the
    target's own that ended the round, unless the answer ended before it."""
    nodes = [node | {"kind": "rejected", "divergence": None} for node in of["nodes"]]
    nodes[0]["kind"] = "root"
    for place, made in enumerate(of["emitted"]):
        if place + 1 < len(of["path"]):
            node = nodes[of["path"][place + 1]]
            node["kind"] = "fuzzy" if made["source"] == "fuzzy" else "accepted"
        else:
            node = made | {"parent": of["path"][place], "kind": "next"}
            nodes.append(node)
        node["divergence"] = made["divergence"]
    return nodes


def _places(nodes: Sequence[Mapping]) -> list[tuple[float, float]]:
    """Left upper corners: levels go to the right, leaves downwards, and a node stands in the middle
    of its children."""
    children: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes[1:], start=1):
        children[node["parent"]].append(index)
    place = [(0.0, 0.0)] * len(nodes)
    leaves = 0

    def walk(index: int, level: int) -> float:
        nonlocal leaves
        below = [walk(child, level + 1) for child in children[index]]
        if not below:
            below = [2.0 + leaves * (HEIGHT + GAP_Y)]
            leaves += 1
        place[index] = 2.0 + level * (WIDTH + GAP_X), (below[0] + below[-1]) / 2
        return place[index][1]

    walk(0, 0)
    return place


def _drawing(nodes: Sequence[Mapping]) -> str:
    """The tree as SVG."""
    place = _places(nodes)
    lines, boxes = [], []
    for node, (x, y) in zip(nodes, place, strict=True):
        if node["parent"] >= 0:
            from_x, from_y = place[node["parent"]]
            start, end, middle = from_x + WIDTH, x, x - GAP_X / 2
            heights = from_y + HEIGHT / 2, y + HEIGHT / 2
            lines.append(
                f'<path class="{node["kind"]}" d="M{start:g} {heights[0]:g} '
                f'C{middle:g} {heights[0]:g} {middle:g} {heights[1]:g} {end:g} {heights[1]:g}"/>'
            )
        boxes.append(_box(node, x, y))
    width, height = (max(sides) for sides in zip(*place, strict=True))
    width, height = width + WIDTH + 2, height + HEIGHT + 2
    return (
        f'<svg width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="the draft tree of the round">{"".join(lines + boxes)}</svg>'
    )


def _box(node: Mapping, x: float, y: float) -> str:
    """A node: its text, both probabilities, and what became of it."""
    text = node["text"].translate(SEEN)
    brief = text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
    sides = (("target", node["target_prob"]), ("draft", node["draft_prob"]))
    known = ", ".join(f"{side} {prob:.2f}" for side, prob in sides if prob is not None)
    what = KINDS[node["kind"]]
    if node["divergence"] is not None:
        what += f", divergence {_number(node['divergence'])}"
    return (
        f'<g class="{node["kind"]}"><title>{escape(text)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        f'<text x="{x + 8:g}" y="{y + 18:g}">{escape(brief)}</text>'
        f'<text class="small" x="{x + 8:g}" y="{y + 33:g}">{known}</text>'
        f'<text class="small" x="{x + 8:g}" y="{y + 47:g}">{what}</text></g>'
    )


def _number(value: float | str) -> str:
    """A divergence; an infinite one is a text (answering.json_number)."""
    return value if isinstance(value, str) else f"{value:.3f}"
