"use strict";
// The answers side by side. They are untrusted text: everything goes in by textContent.
// Their form is told by pack_answers in write_report.py; on the page of one answer is nothing else.
(() => {
  const runs = JSON.parse(document.getElementById("answer-data").textContent);
  const { element, number, quoted, token, takeThought, tracedTokens, showTips, drawTree } = drawing; // answer.js
  const byId = (id) => document.getElementById(id);
  const shown = { run: null, question: null, arms: [] };
  let open = null; // { column, turn, round } whose tree is shown

  // --- which question, which arms -----------------------------------------------------------
  function fillQuestions() {
    runs.forEach((run, runIndex) => run.questions.forEach((question, index) => {
      const words = [`${question.id}`, question.category];
      if (runs.length > 1) words.unshift(run.name);
      if (question.choice) words.push(`choice ${question.choice}`);
      if (scoresDiffer(question)) words.push("scores differ");
      if (question.answers.some((answer) => answer?.[0].rounds)) words.push("with trees");
      const label = words.filter((word) => word !== "").join(", ");
      byId("question").append(element("option", { value: `${runIndex}/${index}` }, label));
    }));
  }

  const ownScore = (scored) => scored ? Object.values(scored.scores)[0] : undefined;
  const scoresDiffer = (question) =>
    new Set(question.scores.map(ownScore).filter((score) => score !== undefined)).size > 1;

  const fuzzyOf = (answer) =>
    (answer ?? []).reduce((sum, turn) => sum + turn.parts.filter((part) => part[1]).length, 0);

  /* plain, then of each rule of a plug-in, of path and of fsd the arm with the most fuzzy tokens,
     then exact, then the others with the most; or the arms that were shown before. */
  function chooseArms(run, question) {
    if (shown.run === run && shown.arms.length) return;
    const counts = question.answers.map(fuzzyOf);
    const others = run.arms.map((_, index) => index);
    others.sort((a, b) => counts[b] - counts[a] || a - b);
    const ruleOf = (index) => run.arms[index].split(/[:,@]/)[0];
    const fuzziest = (rule, of = others) => of.find((index) => ruleOf(index) === rule) ?? -1;
    const own = others.filter((index) => run.own.includes(index));
    const ofPlugin = [...new Set(own.map(ruleOf))].map((rule) => fuzziest(rule, own));
    const wanted = [run.arms.indexOf("plain"), ...ofPlugin, fuzziest("path"), fuzziest("fsd"), run.arms.indexOf("exact")];
    const chosen = [...new Set([...wanted.filter((index) => index >= 0), ...others])].slice(0, 3);
    shown.arms = chosen.sort((a, b) => counts[a] - counts[b] || a - b);
  }

  /* The round whose tree a page of one answer opens with: the first with a fuzzy token, or the
     largest. */
  function tellingRound(rounds) {
    const fuzzy = rounds.findIndex((round) => round.emitted.some((made) => made.source === "fuzzy"));
    const sizes = rounds.map((round) => round.nodes.length);
    return fuzzy >= 0 ? fuzzy : sizes.indexOf(Math.max(...sizes));
  }

  function show(value) {
    const [run, question] = value.split("/").map(Number);
    const runData = runs[run];
    chooseArms(runData, runData.questions[question]);
    Object.assign(shown, { run: runData, question: runData.questions[question] });
    byId("question").value = value;
    draw();
  }

  function draw() {
    closeTree();
    const { run, question, arms } = shown;
    const columns = byId("columns");
    columns.replaceChildren();
    columns.append(element("div", { className: "prompt" }, question.prompts.filter(Boolean).join("\n\u2014\n") || `question ${question.id}`));
    arms.forEach((arm, column) => {
      const box = element("div", { className: "column" });
      box.dataset.arm = run.arms[arm];
      const picker = element("select", {});
      picker.setAttribute("aria-label", `arm of column ${column + 1}`);
      run.arms.forEach((name, index) => picker.append(element("option", { value: index, selected: index === arm }, name)));
      picker.addEventListener("change", () => { shown.arms[column] = Number(picker.value); draw(); });
      if (run.colors) picker.style.borderLeft = `.6em solid ${run.colors[arm]}`; // as in plot and tables
      box.append(picker);
      const answer = question.answers[arm];
      if (!answer) box.append(element("p", { className: "note" }, "this arm has not answered it"));
      if (answer && question.scores[arm]) box.append(drawScore(question.scores[arm]));
      (answer ?? []).forEach((turn, index) => box.append(...drawTurn(turn, index, column, answer.length)));
      columns.append(box);
    });
    byId("traced").hidden = !arms.some((arm) => question.answers[arm]?.[0].rounds);
  }

  /* Right or wrong where the scorer's own score is 1 or 0, all scores, and the right answers. */
  function drawScore(scored) {
    const mark = { 1: ["\u2713 right", "right"], 0: ["\u2717 wrong", "wrong"] }[ownScore(scored)];
    const box = element("p", { className: "score" });
    if (mark) box.append(element("strong", { className: mark[1] }, mark[0]), " ");
    const scores = Object.entries(scored.scores).map(([name, score]) => `${name} ${Number(score.toFixed(3))}`);
    box.append(element("span", { className: "small" }, `(${scores.join(", ")})`));
    if (scored.reference.length) {
      const words = `Reference: ${scored.reference.join(" or ")}`;
      box.append(element("span", { className: "reference small" }, words));
    }
    return box;
  }

  function drawTurn(turn, index, column, turns) {
    const fuzzy = fuzzyOf([turn]);
    const words = [`${turn.tokens} tokens`, `${fuzzy} fuzzy`];
    if (turn.rounds) words.push(`${turn.rounds.length} rounds`);
    if (turn.repetition !== undefined) { // not on the page of one answer
      const plain = shown.question.answers[shown.run.arms.indexOf("plain")]?.[index];
      words.push(`repetition ${number(turn.repetition, 2)}` + (plain ? ` (plain ${number(plain.repetition, 2)})` : ""));
    }
    if (turns > 1) words.unshift(`turn ${index + 1}`);
    const line = element("div", { className: "answer" });
    line.append(...(turn.rounds ? tracedTokens(turn, shown.run.greedy) : recordedTokens(turn)));
    for (const span of line.children) Object.assign(span.dataset, { column, turn: index });
    if (turn.thought) line.prepend(takeThought(line, turn));
    return [element("p", { className: "note small" }, words.join(", ")), line];
  }

  const ratio = (regret) =>
    typeof regret === "number" ? `the target's most likely token is ${Math.exp(regret).toFixed(1)} times as likely` : "";

  function recordedTokens(turn) {
    return turn.parts.map(([text, fuzzy]) => {
      if (!fuzzy) return document.createTextNode(text);
      const tip = [quoted(text) + ": fuzzy", ratio(fuzzy.regret), `regret ${number(fuzzy.regret)} nats`];
      if (fuzzy.D !== null) tip.push(`D ${number(fuzzy.D)}`);
      return token(text, "fuzzy", tip);
    });
  }

  // --- the tree of a round ------------------------------------------------------------------
  function openTree(column, turn, round) {
    const rounds = shown.question.answers[shown.arms[column]]?.[turn]?.rounds;
    if (!rounds?.[round]) return;
    open = { column, turn, round };
    const tree = byId("tree");
    byId("panel").hidden = false;
    const words = drawTree(tree, rounds[round]);
    const title = `${shown.run.arms[shown.arms[column]]}, turn ${turn + 1}, round ${round + 1} of ` +
      `${rounds.length}: ${words}`;
    byId("round-title").textContent = title;
    tree.setAttribute("aria-label", `draft tree. ${title}`);
    byId("before").disabled = round === 0;
    byId("after").disabled = round === rounds.length - 1;
    for (const span of byId("columns").querySelectorAll("[data-round]")) {
      const of = [span.dataset.column, span.dataset.turn, span.dataset.round].map(Number);
      span.classList.toggle("same-round", of[0] === column && of[1] === turn && of[2] === round);
    }
  }

  function closeTree() {
    open = null;
    byId("panel").hidden = true;
    for (const span of byId("columns").querySelectorAll(".same-round")) span.classList.remove("same-round");
  }

  // --- events -------------------------------------------------------------------------------
  function openSpan(span) {
    if (span?.dataset.round === undefined) return;
    openTree(Number(span.dataset.column), Number(span.dataset.turn), Number(span.dataset.round));
  }
  byId("question").addEventListener("change", () => show(byId("question").value));
  const columns = byId("columns");
  const tokenOf = (event) => event.target.closest?.("[data-tip]");
  showTips(columns, byId("tip"));
  columns.addEventListener("click", (event) => openSpan(tokenOf(event)));
  columns.addEventListener("keydown", (event) => {
    if (event.key === "Enter") openSpan(tokenOf(event));
  });
  byId("before").addEventListener("click", () => openTree(open.column, open.turn, open.round - 1));
  byId("after").addEventListener("click", () => openTree(open.column, open.turn, open.round + 1));
  byId("close").addEventListener("click", closeTree);

  // --- which plot --------------------------------------------------------------------------
  const figures = [...document.querySelectorAll("figure")];
  function showPlot() {
    for (const figure of figures) {
      figure.hidden = ["up", "across"].some((axis) => figure.dataset[axis] !== byId(axis).value);
    }
  }
  if (figures.length) { // none on the page of one answer
    const first = figures.find((figure) => figure.querySelector("svg")) ?? figures[0];
    for (const axis of ["up", "across"]) {
      const names = new Set(figures.map((figure) => figure.dataset[axis]));
      byId(axis).append(...[...names].map((name) => element("option", { value: name }, name)));
      byId(axis).value = first.dataset[axis];
      byId(axis).addEventListener("change", showPlot);
    }
    byId("across").closest("p").hidden = false;
    showPlot();
  }

  fillQuestions();
  const any = byId("question").options[0];
  if (!any) return;
  byId("answers").hidden = false;
  const options = [...byId("question").options];
  const having = (words) => options.find((option) => option.textContent.includes(words));
  show((having(", with trees") ?? having(", scores differ") ?? any).value);
  if (!figures.length) openTree(0, 0, tellingRound(shown.question.answers[0][0].rounds));
})();
