"use strict";
// Draws what evaluate/demo.py sends: {greedy, columns}, a column {arm, turns}, a turn as answer.js of
// the report reads it, with its prompt, and its figures in `words`. `root`, `props` and `watch` are
// what Gradio gives a component's script.
function drawDemo(root, props, watch) {
  const { element, takeThought, tracedTokens, showTips, drawTree } = drawing;
  const TURN = '<div class="prompt"></div><div class="answer"></div><p class="figures"></p>' +
    '<p class="small"></p><div class="scroll" hidden><svg class="tree" role="img"></svg></div>';

  /* With the tree of its last round, or of the one whose token is clicked. */
  function showTurn(column, turn) {
    const box = column.appendChild(element("div", { innerHTML: TURN }));
    const [prompt, line, figures, title, scroll] = box.children;
    prompt.textContent = turn.prompt;
    line.append(...tracedTokens(turn, props.value.greedy));
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

  const drawn = []; // a column stays as it is while another one grows, with what is open in it
  function draw() {
    props.value.columns.forEach(({ arm, turns }, number) => {
      const now = JSON.stringify(turns);
      const column = root.querySelectorAll("section")[number];
      if (drawn[number] !== now) column.replaceChildren(element("h3", {}));
      column.firstChild.textContent = arm;
      if (drawn[number] !== now) turns.forEach((turn) => showTurn(column, turn));
      drawn[number] = now;
    });
  }

  const tip = document.body.appendChild(element("div", { className: "tip", hidden: true }));
  showTips(root, tip);
  watch("value", draw);
}
