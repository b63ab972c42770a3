"use strict";
// Draws what evaluate/demo.py sends: {greedy, done, columns}, a column its turns, a turn as answer.js of
// the report reads it, with its arm and prompt, its figures in `words`, and its `row` of what was
// asked. `root`, `props` and `watch` are what Gradio gives a component's script.
const HEADS = ["prompt", "arm", "tokens a round", "fuzzy", "regret", "repetition", "times plain's speed"];
function drawDemo(root, props, watch) {
  const { element, takeThought, tracedTokens, showTips, drawTree } = drawing;
  const TURN = '<h3></h3><div class="prompt"></div><div class="answer"></div><p class="figures"></p>' +
    '<p class="small"></p><div class="scroll" hidden><svg class="tree" role="img"></svg></div>';

  /* With the tree of its last round, or of the one whose token is clicked. */
  function showTurn(column, turn) {
    const box = column.appendChild(element("div", { innerHTML: TURN }));
    const [name, prompt, line, figures, title, scroll] = box.children;
    name.textContent = turn.arm;
    prompt.textContent = turn.prompt;
    line.append(...tracedTokens(turn, props.value.greedy));
    line.querySelector(".fuzzy")?.classList.add("first"); // up to it the text is exact's
    if (turn.thought) line.prepend(takeThought(line, turn));
    figures.textContent = turn.words;
    function showRound(place) {
      if (!turn.rounds[place]?.nodes[1]) return; // plain drafts nothing
      scroll.hidden = false;
      const words = drawTree(scroll.firstChild, turn.rounds[place]);
      title.textContent = `round ${place + 1} of ${turn.rounds.length}: ${words}`;
      for (const span of line.querySelectorAll("[data-round]")) {
        span.classList.toggle("same-round", Number(span.dataset.round) === place);
      }
    }
    line.addEventListener("click", (event) => showRound(Number(event.target.dataset.round)));
    showRound(turn.rounds.length - 1);
  }

  let asked = false; // and nothing of the answer drawn
  const drawn = []; // a column stays as it is while another one grows, with what is open in it
  function draw() {
    let answered = false;
    props.value.columns.forEach((turns, number) => {
      const now = JSON.stringify(turns);
      const column = root.querySelectorAll("section")[number];
      if (drawn[number] === now) return;
      column.replaceChildren();
      turns.forEach((turn) => showTurn(column, turn));
      drawn[number] = now;
      answered ||= turns.length > 0;
    });
    if (asked && answered && root.getBoundingClientRect().top > innerHeight / 2) {
      root.firstElementChild.scrollIntoView(); // on a small screen, once for what is asked
    }
    asked &&= !answered;
    if (props.value.done) tabulate(props.value.columns.map((turns) => turns.at(-1)));
  }

  /* What was answered on this page so far: a row for exact and one for the third answer. */
  function tabulate([, ...answers]) {
    const table = root.querySelector(".asked");
    function addRow(cells) {
      const row = table.insertRow();
      for (const cell of cells) row.insertCell().textContent = cell;
    }
    if (!table.rows.length) addRow(HEADS);
    for (const { prompt, arm, row } of answers) addRow([prompt.slice(0, 30), arm.split(": ")[0], ...row]);
  }

  document.addEventListener("click", ({ target }) => { asked ||= /^\s*Answer/.test(target.closest?.("button")?.textContent); });
  const tip = document.body.appendChild(element("div", { className: "tip", hidden: true }));
  showTips(root, tip);
  watch("value", draw);
}
