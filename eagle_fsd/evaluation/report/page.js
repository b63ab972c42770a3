"use strict";
// The answers side by side. They are untrusted text: everything goes in by textContent.
// Their form is told by pack_answers in write_report.py; on the page of one answer is nothing else.
(() => {
  const runs = JSON.parse(document.getElementById("answer-data").textContent);
  const byId = (id) => document.getElementById(id);
  const WORDS = { draft: "accepted draft", fuzzy: "fuzzy draft", target: "the target's own token" };
  const NODE = { width: 92, height: 44, gapX: 26, gapY: 8 };
  const shown = { run: null, question: null, arms: [] };
  let open = null; // { column, turn, round } whose tree is shown

  const number = (value, digits = 3) =>
    value === null ? "-" : typeof value === "string" ? value : value.toFixed(digits);
  const quoted = (text) => "\u201c" + text.replace(/\n/g, "\u21b5") + "\u201d";
  function brief(token) {
    const one = token === "" ? "\u2205" : token.replace(/\n/g, "\u21b5").replace(/ /g, "\u2423");
    const letters = [...one];
    return letters.length > 11 ? letters.slice(0, 10).join("") + "\u2026" : one;
  }
  function element(name, attributes, content) {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    if (content !== undefined) made.textContent = content;
    return made;
  }

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
    line.append(...(turn.rounds ? tracedTokens(turn, index, column) : recordedTokens(turn)));
    if (turn.thought) line.prepend(takeThought(line, turn));
    return [element("p", { className: "note small" }, words.join(", ")), line];
  }

  /* The first characters of an answer, or tokens of a traced one, which a reasoning target thought,
     in a box of their own. */
  function takeThought(line, turn) {
    const box = element("div", { className: "thought" });
    for (let left = turn.thought; left > 0 && line.firstChild; ) {
      const node = line.firstChild;
      if (node.nodeType === Node.TEXT_NODE && node.length > left) node.splitText(left);
      left -= turn.rounds ? 1 : node.textContent.length;
      box.append(node);
    }
    box.prepend(element("span", { className: "note small" }, "thought\n"));
    return box;
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

  // the token that ends an answer is none of its text, and has a sign of its own
  const traced = (made) => made.end ? "\u25a0" : made.text;

  function tracedTokens(turn, index, column) {
    const first = token(traced(turn.first), "target", ["from prefill: the target's own token"]);
    const spans = [first];
    turn.rounds.forEach((round, roundIndex) => {
      for (const made of round.emitted) {
        const tip = [`${quoted(made.text)}: ${WORDS[made.source]}`];
        if (made.source === "fuzzy") {
          const who = shown.run.greedy ? "exact would have emitted" : "the target's most likely token is";
          tip.push(`${who} ${quoted(made.best)} (P ${number(made.best_prob, 2)})`);
        }
        tip.push(`P ${number(made.target_prob)}, Q ${number(made.draft_prob)}, ` +
          `D ${number(made.divergence)}, regret ${number(made.regret)} nats`);
        tip.push(`round ${roundIndex + 1} of ${turn.rounds.length}` + (made.end ? ", the end of the answer" : ""));
        const span = token(traced(made), made.source, tip);
        if (made.end) span.classList.add("end");
        Object.assign(span.dataset, { column, turn: index, round: roundIndex });
        spans.push(span);
      }
    });
    return spans;
  }

  function token(text, source, tip) {
    const span = element("span", { className: `token ${source}` }, text);
    span.dataset.tip = tip.filter(Boolean).join("\n");
    if (source === "fuzzy") span.tabIndex = 0;
    return span;
  }

  // --- what is known of a token -------------------------------------------------------------
  function showTip(span) {
    const tip = byId("tip");
    tip.textContent = span.dataset.tip;
    tip.hidden = false;
    const at = span.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${at.bottom + scrollY + 6}px`;
  }
  const hideTip = () => { byId("tip").hidden = true; };

  // --- the tree of a round ------------------------------------------------------------------
  /* Nodes of the drawing: the round's, and the target's own token behind the path, unless the
     answer ended before it. A token's D is that of its parent's place, by which it was judged. */
  function treeNodes(round) {
    const node = (of, parent, mark) =>
      ({ word: of.text, parent, p: of.target_prob, q: of.draft_prob, d: null, mark });
    const nodes = round.nodes.map((of) => node(of, of.parent, ""));
    nodes[0].mark = "kept";
    round.emitted.forEach((made, step) => {
      const index = round.path[step + 1] ?? nodes.push(node(made, round.path[step], "next")) - 1;
      if (made.source !== "target") nodes[index].mark = made.source === "fuzzy" ? "fuzzy" : "kept";
      nodes[index].d = made.divergence;
    });
    return nodes;
  }

  /* Depth goes to the right, leaves downwards; a parent stands between its children. */
  function place(nodes) {
    const children = nodes.map(() => []);
    nodes.forEach((node, index) => { if (node.parent >= 0) children[node.parent].push(index); });
    let leaves = 0;
    (function walk(index, depth) {
      const node = nodes[index];
      node.x = depth * (NODE.width + NODE.gapX) + 4;
      for (const child of children[index]) walk(child, depth + 1);
      node.y = children[index].length
        ? (nodes[children[index][0]].y + nodes[children[index].at(-1)].y) / 2
        : leaves++ * (NODE.height + NODE.gapY) + 4;
    })(0, 0);
  }

  function svg(name, attributes, content) {
    const made = document.createElementNS(byId("tree").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function drawNode(node) {
    const group = svg("g", { class: node.mark });
    const box = { x: node.x, y: node.y, width: NODE.width, height: NODE.height, rx: 4 };
    group.append(svg("rect", box));
    const at = { x: node.x + 7 };
    group.append(svg("text", { ...at, y: node.y + 15 }, brief(node.word)));
    const probs = node.parent < 0 ? "root" : `P ${number(node.p, 2)} Q ${number(node.q, 2)}`;
    group.append(svg("text", { ...at, y: node.y + 27, class: "small" }, probs));
    const third = node.mark === "fuzzy" ? "fuzzy " : node.mark === "next" ? "target" : "";
    const d = node.d === null ? "" : `D ${number(node.d)}`;
    group.append(svg("text", { ...at, y: node.y + 38, class: "small" }, third + d));
    group.append(svg("title", {}, `${quoted(node.word)} P ${number(node.p, 4)} Q ${number(node.q, 4)}`));
    return group;
  }

  function openTree(column, turn, round) {
    const rounds = shown.question.answers[shown.arms[column]]?.[turn]?.rounds;
    if (!rounds?.[round]) return;
    open = { column, turn, round };
    const nodes = treeNodes(rounds[round]);
    place(nodes);
    const tree = byId("tree");
    tree.replaceChildren();
    const width = Math.max(...nodes.map((node) => node.x)) + NODE.width + 6;
    const height = Math.max(...nodes.map((node) => node.y)) + NODE.height + 6;
    tree.setAttribute("width", width);
    tree.setAttribute("height", height);
    for (const node of nodes) {
      if (node.parent < 0) continue;
      const from = nodes[node.parent];
      const [x0, y0] = [from.x + NODE.width, from.y + NODE.height / 2];
      const [x1, y1] = [node.x, node.y + NODE.height / 2];
      const bend = (x0 + x1) / 2;
      tree.append(svg("path", { d: `M${x0} ${y0}C${bend} ${y0} ${bend} ${y1} ${x1} ${y1}`, class: node.mark }));
    }
    for (const node of nodes) tree.append(drawNode(node));
    const accepted = rounds[round].path.length - 1;
    const title = `${shown.run.arms[shown.arms[column]]}, turn ${turn + 1}, round ${round + 1} of ` +
      `${rounds.length}: ${rounds[round].nodes.length - 1} drafts, ${accepted} accepted`;
    byId("round-title").textContent = title;
    tree.setAttribute("aria-label", `draft tree. ${title}`);
    byId("before").disabled = round === 0;
    byId("after").disabled = round === rounds.length - 1;
    byId("panel").hidden = false;
    for (const span of byId("columns").querySelectorAll("[data-round]")) {
      const of = [span.dataset.column, span.dataset.turn, span.dataset.round].map(Number);
      span.classList.toggle("same-round", of[0] === column && of[1] === turn && of[2] === round);
    }
    const scroll = tree.parentElement; // the path's middle into view
    scroll.scrollTop = nodes[rounds[round].path.at(-1)].y - scroll.clientHeight / 2;
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
  for (const [name, shows] of [["mouseover", true], ["mouseout", false], ["focusin", true], ["focusout", false]]) {
    columns.addEventListener(name, (event) => {
      if (!shows) hideTip();
      else if (tokenOf(event)) showTip(tokenOf(event));
    });
  }
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
  if (!figures.length) { // the page of one answer opens with a tree: of a fuzzy token, or the largest
    const { rounds } = shown.question.answers[0][0];
    const fuzzy = rounds.findIndex((round) => round.emitted.some((made) => made.source === "fuzzy"));
    const sizes = rounds.map((round) => round.nodes.length);
    openTree(0, 0, fuzzy >= 0 ? fuzzy : sizes.indexOf(Math.max(...sizes)));
  }
})();
