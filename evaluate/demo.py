"""A page in the browser: a prompt, answered by plain, by exact and by a rule with a slider.

    scripts/demo.sh                         # sets up, then prints the address of the page
    scripts/demo.sh --target T --head H     # with the options of models that every command has

The three answer one after the other on one model, and of pages that ask at once each waits for
those before it. An answer ends when its page is closed, or asks anew.
"""

import time
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from inspect import getdoc
from math import floor, inf, isfinite, log, log10
from pathlib import Path

import eagle_fsd
from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, SamplingConfig, step_of_setup
from eagle_fsd.options import ModelOptions


@dataclass
class DemoOptions:
    port: int = 7860
    """The port of the page, which browsers of this machine alone can open."""
    share: bool = False
    """Make the page public, by a server of Gradio's makers."""


EVERY = 0.15  # seconds between what is sent of an answer
LARGEST_JS = log(2)  # of the divergence that fsd asks for by default
DONE = "All three have answered."
QUIET = {"show_progress": "hidden"}  # no veil over what is read
# on which SmolLM2 has clearly more tokens a round under fsd and path than under exact
PROMPTS = {
    "A plan": "Make a plan for a week of learning the guitar, day by day.",
    "Tips": "List ten tips for saving energy at home, each with one sentence.",
    "Reasons": "Give five reasons to learn a second language, each with an example.",
    "A program": "Write a Python function that returns the n largest numbers of a list, and "
    "explain it.",
    "A fairy tale": "Write a fairy tale about a fox and a clock.",
    "An invitation": "Write an email that invites colleagues to a picnic.",
}
INTRODUCTION = """## Fuzzy speculative decoding: turn the dial and look
A small drafter guesses some tokens ahead, and **{target}**, the *target*, checks all guesses in one
pass, a *round*. One prompt is answered three times. **Plain** is the target without guesses.
**Exact** keeps the guesses that the target would have written itself, so its text is plain's. The
**third** also keeps guesses that only come close, by a rule whose dial you turn: the looser, the
more tokens a round has, and the less the text is the target's own, until it breaks or repeats
itself."""
WORDS = """<p class="small"><span class="token fuzzy first">Fuzzy</span>: a guess that exact would
have replaced; in a first turn the text is exact's up to the first, framed one. Point at it, or tap
it, to see what the target would have said. <span class="token draft">Accepted guesses</span> of
this colour are what the target would have written, as tokens without a colour are.<br>
<b>P</b>, <b>Q</b>: a token's probability by target and by drafter. <b>D</b>: how far apart the two
are in its place, by Jensen-Shannon divergence, from 0 to 0.69; "-" where the guess was looked up in
the text and has no Q. <b>Regret</b>: how far, in nats, log P is below that of the target's
favourite; 0.69 is half as likely. <b>Repetition</b>: the share of 4 tokens in a row that the answer
had before.<br>Click a token for its round's tree, whose root is the last token before it.</p>"""
COLUMNS = (
    f'<div class="columns">{"<section></section>" * 3}</div>'
    '<div class="scroll"><table class="asked"></table></div>'
)
NAMES = ("the target alone", "lossless", "by your dial")
STYLE = """
.columns { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 0 1.5rem; }
.columns .prompt { white-space: pre-wrap; background: var(--raised); padding: .3rem .6rem;
  border-left: 3px solid var(--line); font-size: 13px; max-height: 3.5rem; overflow-y: auto; }
.columns .figures { white-space: pre-line; font-size: 13px; }
.scroll { overflow: auto; max-height: 14rem; }
.scroll::-webkit-scrollbar { height: 8px; width: 8px; }
.scroll::-webkit-scrollbar-thumb { background: var(--line); }
.columns { scroll-margin-top: 4rem; }
.token.first { outline: 2px solid; }
.asked { font-size: 13px; margin-top: 1rem; white-space: nowrap; }
@media (max-width: 760px) {
  .columns { grid-template-columns: minmax(0, 1fr); min-height: 90vh; align-content: start; }
}
"""


def dial_of(rule: str) -> dict | None:
    """The slider of a rule's first field; None where that is no number. Without a bound, or with a
    far one, it ends at three times the default, or where a divergence does."""
    from eagle_fsd.rules import RULES
    from eagle_fsd.rules.fsd import Fsd

    kind = RULES[rule]
    first, (low, high) = next(iter(fields(kind)), None), kind.bounds
    if first is None or first.type is str or not isfinite(low):
        return None
    start = low if first.default is MISSING else first.default
    most = LARGEST_JS if issubclass(kind, Fsd) else 3 * start or 1
    high = high if high <= 1 else round(min(high, most), 3)
    step = 1 if first.type is int else 10 ** floor(log10(high - low)) / 100
    hint = f", exact at {kind.lossless_at:g}" if isfinite(kind.lossless_at) else ""
    if kind.lossless_at == inf:
        hint = ", smaller is looser"
    label = f"Dial: {first.name} of {rule}{hint}"
    return {"minimum": low, "maximum": high, "value": start, "step": step, "label": label}


def arm_text(rule: str, dial: float, drafter: str) -> str:
    """The arm, as it is typed in commands."""
    from eagle_fsd.arms import parse_arm

    return parse_arm(f"{rule}:{dial:g}@{drafter}").text


def figures(
    made: "eagle_fsd.Answer", own: tuple[float, float], plain: tuple[float, float]
) -> dict[str, object]:
    """The lines under an answer, and its row of what was asked on the page; of it and of plain's
    are given tokens a second and repetition."""
    regrets = [regret for each in made.rounds for regret in each.regret]
    row = [
        f"{made.tokens_per_round:.2f}",
        f"{made.fuzzy_share:.1%}",
        f"{sum(regrets) / max(1, len(regrets)):.3f}",
        f"{own[1]:.2f}",
        f"{own[0] / plain[0]:.2f}",
    ]
    gain, fuzzy, regret, repeated, speed = row
    lines = [
        f"{gain} tokens a round, {fuzzy} fuzzy",
        f"regret {regret} nats a token",
        f"repetition {repeated} (plain's {plain[1]:.2f})",
        f"{own[0]:.1f} tokens a second, {speed} times plain's; one answer is noisy",
    ]
    if made.finish == "length":
        lines.append("ended by the most tokens of an answer")
    return {"words": "\n".join(lines), "row": row}


def answer(
    model: "eagle_fsd.Model", queue: list, said: list, prompt: str, arm: str, settings: dict
) -> Iterator[tuple[str, dict, list]]:
    """Answer by plain, by exact and by the arm. Yields meanwhile what is going on, what demo.js
    draws, and all that was said to and by each of the three, which begins with `said`. `settings`
    are those of `stream`. `queue` has who asked the model, in that order; to close this leaves it.
    """
    from eagle_fsd.arms import parse_arm
    from eagle_fsd.evaluation.answering import TurnTrace
    from eagle_fsd.evaluation.record_numbers import repetition
    from eagle_fsd.evaluation.report.write_report import traced_turn
    from eagle_fsd.rules import RULES
    from eagle_fsd.timing import synchronized_time

    chosen, device = parse_arm(arm), model.target.device
    chosen.check(SamplingConfig(settings["temperature"]))  # before the others answer
    arms = [parse_arm("plain"), chosen.with_rule(RULES["exact"]()), chosen]

    def now(words: str) -> tuple[str, dict, list]:
        greedy, done = not settings["temperature"], words == DONE
        return words, {"greedy": greedy, "done": done, "columns": said}, said

    def watch(step: object) -> None:
        nonlocal began
        paused = synchronized_time(device)
        trace.take(step)
        began += synchronized_time(device) - paused

    whole = min(map(len, said))
    said = [turns[:whole] for turns in said]  # without what only some were asked before a stop
    me, plain = object(), None
    queue.append(me)
    try:
        while ahead := queue.index(me):
            yield now(f"The model is busy: your answer comes after {ahead} asked before.")
            time.sleep(EVERY)
        for number, each in enumerate(arms):
            yield now(f"{each.text} begins.")
            trace, earlier, messages = TurnTrace(model, each), said[number], []
            for turn in earlier:
                messages.append({"role": "user", "content": turn["prompt"]})
                messages.append({"role": "assistant", "content": turn["answer"]})
            messages.append({"role": "user", "content": prompt})
            began = sent = synchronized_time(device)
            for _, made in eagle_fsd.stream(
                model, messages, arm=each.text, watch=watch, **settings
            ):
                paused = synchronized_time(device)
                if made.finish is None and (paused - sent < EVERY or not made.rounds):
                    continue
                own = len(made.tokens) / (paused - began), repetition(made.tokens)
                plain = own if number == 0 else plain
                turn = traced_turn(trace.taken, [text for text, *_ in made.pieces()], made.thought)
                turn |= {"prompt": prompt, "answer": made.text[made.thought :]}
                turn |= {"arm": f"{each.text}: {NAMES[number]}"} | figures(made, own, plain)
                # in a list of its own: Gradio sends what differs from what was yielded before
                said = [*said[:number], [*earlier, turn], *said[number + 1 :]]
                yield now(f"{each.text} answers.")
                sent = synchronized_time(device)
                began += sent - paused  # the clock stands still while it is shown, or traced
        yield now(DONE)
    finally:
        queue.remove(me)


def serve(
    model: "eagle_fsd.Model", queue: list, options: DemoOptions, *, name: str, wait: bool = True
) -> object:
    """Show the page, until Ctrl-C or in the background: gradio.Blocks, which `close` ends. `name`
    is the target's, and `queue` that of `answer`."""
    import gradio as gr

    from eagle_fsd.drafters.settings import DRAFTERS
    from eagle_fsd.evaluation.report.write_report import page_file
    from eagle_fsd.rules import RULES

    def tell_arm(rule: str, dial: float, drafter: str) -> str:
        what = " ".join(getdoc(RULES[rule]).split("\n\n")[0].split())
        return f"{what} In commands: `--arm {arm_text(rule, dial, drafter)}`"

    def ask(said: list, prompt: str, temperature: float, budget: int, *chosen: object) -> Iterator:
        settings = {"temperature": temperature, "max_new_tokens": budget}
        try:
            yield from answer(model, queue, said, prompt, arm_text(*chosen), settings)
        except BadInput as error:
            yield f"Not answered: {error}", gr.skip(), gr.skip()

    dials = {rule: dial for rule in RULES if (dial := dial_of(rule))}
    drafters = [name for name, kind in DRAFTERS.items() if not kind.head]  # the head is loaded
    if model.draft_model is None:
        drafters = [name for name in drafters if not DRAFTERS[name].needs_draft_model]
    with gr.Blocks(title="Fuzzy speculative decoding", analytics_enabled=False) as page:
        gr.Markdown(INTRODUCTION.format(target=name))
        prompt = gr.Textbox([*PROMPTS.values()][0], label="Prompt", lines=2, max_lines=6)
        gr.Examples([[text] for text in PROMPTS.values()], prompt, example_labels=[*PROMPTS])
        with gr.Row():
            rule = gr.Dropdown([*dials], value="fsd", label="Rule", min_width=120)
            drafter = gr.Dropdown(drafters, value="hybrid", label="Drafter", min_width=120)
            dial = gr.Slider(**dials["fsd"], scale=2)
        with gr.Accordion("Temperature, most tokens", open=False):
            temperature = gr.Slider(0, 1.5, 0, step=0.1, label="Temperature")
            budget = gr.Slider(16, 512, 128, step=16, label="Most tokens of an answer")
        chosen = [rule, dial, drafter]
        told = gr.Markdown(tell_arm(*(each.value for each in chosen)))
        with gr.Row():
            fresh = gr.Button("Answer", variant="primary")
            further = gr.Button("Answer as a further turn")
            stop = gr.Button("Stop")
        status, none, said = gr.Markdown(), gr.State([[], [], []]), gr.State([[], [], []])
        gr.HTML(WORDS)
        columns = gr.HTML(html_template=COLUMNS, js_on_load="drawDemo(element, props, watch)")
        # a rule's own dial first, and only then what the two say
        turned = rule.change(lambda name: gr.Slider(**dials[name]), rule, dial, **QUIET)
        for changed in (turned.then, dial.change, drafter.change):
            changed(tell_arm, chosen, told, **QUIET)
        # what this page has asked before ends when it asks
        asked, going = [prompt, temperature, budget, *chosen], []
        for button, before in ((fresh, none), (further, said)):
            begun = button.click(lambda: "Asked.", None, status, **QUIET)
            # `answer` says who waits; "once" begins nothing in the place of a cancelled one (6.31)
            many = QUIET | {"concurrency_limit": None, "trigger_mode": "multiple"}
            going.append(begun.then(ask, [before, *asked], [status, columns, said], **many))
        gr.on([fresh.click, further.click], None, cancels=going)
        stop.click(lambda: "Stopped.", None, status, cancels=going, **QUIET)
    script = page_file("answer", "js") + Path(__file__).with_suffix(".js").read_text("utf-8")
    head = f"<style>{page_file('answer', 'css')}{STYLE}</style><script>{script}</script>"
    theme = gr.themes.Default(font="system-ui", font_mono="monospace")  # others are fetched
    where = {"server_name": "127.0.0.1", "server_port": options.port, "share": options.share}
    try:
        page.launch(**where, head=head, theme=theme, footer_links=[], prevent_thread_lock=not wait)
    except (OSError, OverflowError) as error:
        raise BadInput(f"--port {options.port} is taken, or is no port: give another") from error
    return page


def run(options: DemoOptions, model_options: ModelOptions) -> None:
    with step_of_setup("demo"):  # before weights load
        import gradio as gr  # noqa: F401

    from eagle_fsd.arms import parse_arm

    drafts = ["exact", *["exact@language_model"][: bool(model_options.draft_model)]]
    model = model_options.load([*map(parse_arm, drafts)])
    serve(model, [], options, name=model_options.target)


if __name__ == "__main__":
    run_command(run, [DemoOptions, ModelOptions])
