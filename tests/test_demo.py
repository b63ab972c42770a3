"""The page of evaluate/demo.py: what its slider says, what it sends while three arms answer, and
the page itself in a headless Chromium, where gradio, playwright and a Chromium are installed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from commands import ROOT, load_command, model_options

import eagle_fsd
from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.rules import RULES

demo = load_command("evaluate/demo.py")
SETTINGS = {"temperature": 0, "max_new_tokens": 24}
ARM, NOTHING = "random:0.7@hybrid", [[], [], []]


@pytest.fixture(scope="module")
def model(models):
    target, head = map(str, models)
    return eagle_fsd.load(target, head=head, tree=TreeConfig(7, 3, 3), dtype="float32")


# --- without a browser ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_dial_starts_at_the_default_and_stays_within_the_bounds(rule):
    """Whatever it shows is an arm; a rule without a number has none."""
    dial = demo.dial_of(rule)
    assert (dial is None) == (rule in ("exact", "rejection"))
    if dial:
        low, high = RULES[rule].bounds
        assert low <= dial["minimum"] < dial["value"] < dial["maximum"] <= high
        assert (dial["maximum"] - dial["minimum"]) / dial["step"] >= 50
        assert demo.arm_text(rule, dial["value"], "hybrid") == parse_arm(f"{rule}@hybrid").text
        for end in ("minimum", "maximum"):
            assert parse_arm(demo.arm_text(rule, dial[end], "ngram")).kind == rule


def test_what_is_sent_grows_to_the_answers_of_the_three_arms(model):
    """The texts are those of generate, drafts by the arm's drafter, and a further turn is asked
    behind each arm's own answer, but not behind one that was stopped before all were asked."""
    *_, (words, shown, said) = demo.answer(model, [], NOTHING, "Hello", ARM, SETTINGS)
    assert words == "All three have answered." and shown["greedy"]
    arms = ["plain", "exact@hybrid", ARM]
    for column, arm in zip(shown["columns"], arms, strict=True):
        (turn,) = column
        assert turn["arm"].startswith(f"{arm}: ")
        made = eagle_fsd.generate(model, "Hello", arm=arm, **SETTINGS)
        assert "".join(turn["texts"]) == turn["answer"] == made.text
        emitted = [token for each in turn["rounds"] for token in each["emitted"]]
        assert [token["source"] == "fuzzy" for token in emitted] == made.fuzzy[1:]
        told = f"{made.tokens_per_round:.2f} tokens a round, {made.fuzzy_share:.1%} fuzzy"
        assert told in turn["words"] and "repetition" in turn["words"]
    assert any(made.fuzzy)
    *_, (_, shown, _) = demo.answer(model, [], said, "More", ARM, SETTINGS)
    before, turn = shown["columns"][2]
    talk = [("user", "Hello"), ("assistant", before["answer"]), ("user", "More")]
    messages = [{"role": role, "content": content} for role, content in talk]
    made = eagle_fsd.generate(model, messages, arm=ARM, **SETTINGS)
    assert "".join(turn["texts"]) == made.text
    *_, (_, shown, _) = demo.answer(model, [], [said[0] * 2, *said[1:]], "More", ARM, SETTINGS)
    assert [len(column) for column in shown["columns"]] == [2, 2, 2]


def test_answers_take_turns_and_one_that_is_closed_frees_the_model(model):
    """Who waits is told so, and nothing that was sent changes behind its back."""
    queue = []
    first, second = (demo.answer(model, queue, NOTHING, "Hello", ARM, SETTINGS) for _ in range(2))
    assert next(first)[0] == "plain begins."
    sent = next(first)
    before = json.dumps(sent)
    assert "busy" in next(second)[0] and "busy" in next(second)[0]
    next(first)
    assert json.dumps(sent) == before
    first.close()
    assert next(second)[0] == "plain begins." and len(queue) == 1
    second.close()
    assert not queue


@pytest.mark.parametrize(
    ("prompt", "arm", "told"), [(" ", ARM, "prompt is empty"), ("Hello", "path:1,x=1", "x=1")]
)
def test_what_cannot_be_answered_is_told_and_frees_the_model(model, prompt, arm, told):
    queue = []
    with pytest.raises(BadInput, match=told):
        list(demo.answer(model, queue, NOTHING, prompt, arm, SETTINGS))
    assert not queue


# --- in a browser ---------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("gradio", reason="no gradio here: scripts/setup.sh demo installs it")
    driver = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install it")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def wait_for(done: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


@pytest.fixture
def open_page(browser):
    """Opens pages that may reach for nothing but this machine, and have no error."""
    pages, wrong = [], []

    def opened(port: int, **settings: object):
        page = browser.new_page(**settings)
        page.set_default_timeout(60000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: wrong.append(r.url) if "//127.0.0.1" not in r.url else None)
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("button", name="Answer", exact=True).wait_for()
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert not [each for each in wrong if not each.startswith(("data:", "blob:"))]


@pytest.fixture(scope="module")
def address(models, browser) -> Iterator[int]:
    """The port of the whole command."""
    port = free_port()
    options = [*map(str, model_options(models)), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = subprocess.Popen(
        [sys.executable, "evaluate/demo.py", *options], cwd=ROOT, env=environment
    )

    def answers() -> bool:
        assert command.poll() is None, "the command has ended"
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/").status == 200
        except OSError:
            return False

    wait_for(answers, 120)
    yield port
    command.terminate()
    command.wait()


@pytest.mark.processes
@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (420, "dark")])
def test_a_prompt_is_typed_a_slider_moved_and_fuzzy_tokens_are_seen(
    address, open_page, width, scheme
):
    """With what exact would have emitted, on hover; the tree of the round whose token is clicked;
    no wider than the screen, and in its colours."""
    page = open_page(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.get_by_label("Prompt").fill("Hello <b>you</b>")
    page.get_by_label("Rule").click()
    page.get_by_role("option", name="random", exact=True).click()
    page.get_by_text("--arm random:0.05@hybrid").wait_for()
    slider = page.locator("input[type=range]").first
    slider.focus()
    for _ in range(45):
        slider.press("ArrowRight")
    page.get_by_text("--arm random:0.5@hybrid").wait_for()
    page.get_by_text("Temperature, most tokens").click()
    budget = page.get_by_label("number input for Most tokens")
    budget.fill("32")
    budget.press("Tab")
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("All three have answered.").wait_for()
    plain, exact, chosen = page.locator("section").all()
    heads = [each.locator("h3").inner_text() for each in (plain, exact, chosen)]
    assert heads == [
        "plain: the target alone",
        "exact@hybrid: lossless",
        "random:0.5@hybrid: by your dial",
    ]
    asked = page.locator(".asked tr").all_inner_texts()
    assert len(asked) == 3 and "exact@hybrid" in asked[1] and "random:0.5@hybrid" in asked[2]
    for column in (plain, exact, chosen):
        assert column.locator(".prompt").inner_text() == "Hello <b>you</b>"
        assert "tokens a second" in column.locator(".figures").inner_text()
    assert not plain.locator(".fuzzy").count() and not exact.locator(".fuzzy").count()
    token = chosen.locator(".token.fuzzy").first
    assert chosen.locator(".token.first").count() == 1 and "first" in token.get_attribute("class")
    token.hover()
    tip = page.locator(".tip").inner_text()
    assert "exact would have emitted" in tip and "regret" in tip and "D " in tip
    ground = token.evaluate("span => getComputedStyle(span).backgroundColor")
    assert ground == {"light": "rgb(255, 217, 160)", "dark": "rgb(107, 63, 0)"}[scheme]
    token.click()
    number = int(token.get_attribute("data-round")) + 1
    assert chosen.locator(".figures + .small").inner_text().startswith(f"round {number} of ")
    assert chosen.locator(".tree .fuzzy").count() and not plain.locator(".tree g").count()
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.processes
def test_a_page_that_is_closed_or_asks_anew_gives_up_its_place(model, open_page):
    """And one that waits for another says so, and answers then. Bug held down: Gradio began no
    answer in the place of one that it had cancelled."""
    queue, port = [before := object()], free_port()
    page = demo.serve(model, queue, demo.DemoOptions(port=port), name="tiny", wait=False)
    try:
        first, second = open_page(port), open_page(port)
        for each, places in ((first, 2), (second, 3)):
            each.get_by_role("button", name="Answer", exact=True).click()
            each.get_by_text("The model is busy").wait_for()
            wait_for(lambda places=places: len(queue) == places)
        first.close()
        wait_for(lambda: len(queue) == 2)
        old = queue[1]
        second.get_by_role("button", name="Answer", exact=True).click()
        wait_for(lambda: len(queue) == 2 and queue[1] is not old)
        queue.remove(before)
        second.get_by_text("All three have answered.").wait_for()
        wait_for(lambda: not queue)
    finally:
        page.close()
