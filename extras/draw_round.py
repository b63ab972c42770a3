"""Draws round.svg, the README's figure: a round of FSD as it happened.

    python extras/draw_round.py

The embedded target answers a prompt; of its rounds the first is drawn in which drafts that the
exact test accepts are followed by one fuzzy token, and that by the token which ends the round.
"""

from html import escape
from pathlib import Path

import eagle_fsd
from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.loop import DecodeConfig, decode_rounds
from eagle_fsd.evaluation.answering import trace_round

ROOT = Path(__file__).resolve().parents[1]
PROMPT, ARM, TREE = "What is a black hole?", "fsd:0.3", TreeConfig(6, 4, 3)
WANTED = ["draft", "draft", "fuzzy", "target"]

LEFT, TOP, ACROSS, DOWN = 12, 92, 172, 96  # the first box, and from a box to the next
WIDTH, HEIGHT = 140, 76  # of a box
STYLE = """
  svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; background: #ffffff }
  text { fill: #1f2328; font-size: 15px } .small { font-size: 12.5px; fill: #59636e }
  .box { fill: #f6f8fa; stroke: #8c959f } .edge { stroke: #8c959f; fill: none }
  .token { font-weight: 600; font-size: 17px }
  .kept .box { fill: #ddf4ff; stroke: #0969da; stroke-width: 2.5 }
  .fuzzy .box { fill: #fff1d6; stroke: #bc4c00; stroke-width: 3 }
  .next .box { fill: none; stroke: #0969da; stroke-width: 2; stroke-dasharray: 5 4 }
  .edge.kept { stroke: #0969da; stroke-width: 3 } .edge.fuzzy { stroke: #bc4c00; stroke-width: 3 }
  .edge.next { stroke: #0969da; stroke-width: 2; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #f0f6fc } .small { fill: #9198a1 }
    .box { fill: #151b23; stroke: #656c76 } .edge { stroke: #656c76 }
    .kept .box { fill: #0c2d4d; stroke: #4493f8 } .fuzzy .box { fill: #3d2407; stroke: #f0883e }
    .next .box { stroke: #4493f8 } .edge.kept, .edge.next { stroke: #4493f8 }
    .edge.fuzzy { stroke: #f0883e }
  }
"""


def wanted_round() -> dict:
    model = eagle_fsd.load("smollm2", tree=TREE)
    arm = parse_arm(ARM)
    config = DecodeConfig(arm.policy(SamplingConfig()), model.stop(128, ()))
    rounds = decode_rounds(model.target, arm.build_drafter(model), model.prompt_ids(PROMPT), config)
    for step in rounds:
        if step.acceptance is not None:
            traced = trace_round(model, arm, step)
            if [place["source"] for place in traced["emitted"]] == WANTED:
                return traced
    raise SystemExit(f"no round of this answer is {WANTED}")


def places(nodes: list[dict]) -> list[tuple[float, float]]:
    """Where each node's box begins: a column a level, the first free row from its parent's."""
    found, free = [], {}  # (level, row) of nodes; the first free row of a level
    for node in nodes:
        level, row = found[node["parent"]] if node["parent"] >= 0 else (-1, 0)
        level, row = level + 1, max(row, free.get(level + 1, 0))
        free[level] = row + 1
        found.append((level, row))
    return [(LEFT + ACROSS * level, TOP + DOWN * row) for level, row in found]


def box(x: float, y: float, lines: list[str], kind: str = "") -> str:
    token, *notes = map(escape, lines)
    middle = x + WIDTH / 2
    texts = [f'<text class="token" x="{middle}" y="{y + 27}">{token}</text>']
    texts += [
        f'<text class="small" x="{middle}" y="{y + 46 + 17 * n}">{note}</text>'
        for n, note in enumerate(notes)
    ]
    shape = f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    return f'<g class="{kind}" text-anchor="middle">{shape}{"".join(texts)}</g>'


def edge(begin: tuple[float, float], end: tuple[float, float], kind: str = "") -> str:
    (x0, y0), (x1, y1) = begin, end
    x0, y0, y1 = x0 + WIDTH, y0 + HEIGHT / 2, y1 + HEIGHT / 2
    half = (x0 + x1) / 2
    return f'<path class="edge {kind}" d="M{x0} {y0} C{half} {y0} {half} {y1} {x1} {y1}"/>'


def drawing(traced: dict) -> str:
    nodes, path, emitted = traced["nodes"], traced["path"], traced["emitted"]
    at = places(nodes)
    kinds = dict.fromkeys(path, "kept")
    for node, place in zip(path[1:], emitted, strict=False):
        kinds[node] = "fuzzy" if place["source"] == "fuzzy" else "kept"
    edges, boxes = [], []
    for n, node in enumerate(nodes):
        notes = ["the last token"]
        if n:
            edges.append(edge(at[node["parent"]], at[n], kinds.get(n, "")))
            notes = [f"target {node['target_prob']:.2f}", f"draft {node['draft_prob']:.2f}"]
        boxes.append(box(*at[n], [node["text"].strip(), *notes], kinds.get(n, "")))
    last = at[path[-1]]
    following = (last[0] + ACROSS, last[1])
    edges.append(edge(last, following, "next"))
    boxes.append(
        box(*following, [emitted[-1]["text"].strip(), "the target's", "next token"], "next")
    )
    (fuzzy,) = (place for place in emitted if place["source"] == "fuzzy")
    bottom = max(y for _, y in at) + HEIGHT
    fuzzy_x = at[path[-1]][0]
    threshold = ARM.partition(":")[2]
    lines = [
        "Fuzzy: the target would rather",
        f"say “{fuzzy['best'].strip()}” ({fuzzy['best_prob']:.2f}). The two",
        f"models differ by {fuzzy['divergence']:.2f} here,",
        f"no more than T = {threshold}: taken,",
        f"at a regret of {fuzzy['regret']:.2f} nats.",
    ]
    notes = "".join(
        f'<text class="small" x="{fuzzy_x - 20}" y="{last[1] + HEIGHT + 24 + 18 * n}">{line}</text>'
        for n, line in enumerate(lines)
    )
    width = following[0] + WIDTH + LEFT
    height = max(bottom, last[1] + HEIGHT + 24 + 18 * len(lines)) + 14
    title = f"{len(nodes) - 1} drafts, verified by one forward of the target"
    kept = (
        f"{len(path) - 1} are accepted, and the target's next token follows: {len(emitted)} tokens."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}"><title>{title}</title><style>{STYLE}</style>'
        f'<text x="{LEFT}" y="34">{title}.</text>'
        f'<text x="{LEFT}" y="58">{escape(kept)}</text>'
        f"{''.join(edges)}{''.join(boxes)}{notes}</svg>\n"
    )


if __name__ == "__main__":
    (ROOT / "docs/round.svg").write_text(drawing(wanted_round()), encoding="utf-8")
