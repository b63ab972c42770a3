"use strict";
// Draws what evaluate/demo.py sends: {greedy, columns}, a column {arm, turns}, a turn as answer.js of
// the report reads it, with its key, its prompt, and its figures in `words`. `root`, `props` and
// `watch` are what Gradio gives a component's script.
function drawDemo(root, props, watch) {
  const { element, takeThought, tracedTokens, showTips, drawTree } = drawing;
  const page = root.querySelector(".columns");
  const TURN = '<div class="prompt"></div><div class="answer"></div><p class="figures"></p>' +
    '<p class="small round"></p><div class="scroll" hidden><svg class="tree" role="img"></svg></div>';

  function newTurn(turn) {
    const box = element("div", { innerHTML: TURN });
    box.dataset.key = turn.key;
    box.querySelector(".prompt").textContent = turn.prompt;
    box.querySelector(".answer").addEventListener("click", (event) => {
      box.asked = event.target.closest("[data-round]")?.dataset.round ?? box.asked;
      showRound(box);
    });
    return box;
  }

  /* The round whose token was clicked, or else the last one. */
  function showRound(box) {
    const { rounds } = box.turn;
    const place = Number(box.asked ?? rounds.length - 1);
    const scroll = box.querySelector(".scroll");
    scroll.hidden = !rounds.length || rounds[place].nodes.length === 1; // plain drafts nothing
    if (scroll.hidden) return;
    const words = drawTree(scroll.firstChild, rounds[place]);
    box.querySelector(".round").textContent = `round ${place + 1} of ${rounds.length}: ${words}`;
    for (const span of box.querySelectorAll("[data-round]")) {
      span.classList.toggle("same-round", Number(span.dataset.round) === place);
    }
  }

  /* Tokens that are there stay, and with them the tip or the focus that one has. */
  function showTurn(box, turn) {
    if (box.turn?.finish) return;
    box.turn = turn;
    const line = box.querySelector(".answer");
    tracedTokens(turn, props.value.greedy).forEach((span, place) => {
      const old = line.children[place] ?? line.appendChild(span);
      if (old.textContent !== span.textContent) old.textContent = span.textContent;
      old.dataset.tip = span.dataset.tip;
    });
    if (turn.thought) line.prepend(takeThought(line, turn));
    box.querySelector(".figures").textContent = turn.words;
    showRound(box);
  }

  function draw() {
    props.value.columns.forEach(({ arm, turns }, number) => {
      const [title, ...boxes] = page.children[number].children;
      title.textContent = arm;
      for (const box of boxes) if (!turns.some((turn) => turn.key === box.dataset.key)) box.remove();
      turns.forEach((turn, index) => {
        const column = page.children[number];
        showTurn(column.children[index + 1] ?? column.appendChild(newTurn(turn)), turn);
      });
    });
  }

  showTips(page, document.body.appendChild(element("div", { className: "tip", hidden: true })));
  watch("value", draw);
}
