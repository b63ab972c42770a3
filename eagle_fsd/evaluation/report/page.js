"use strict";
// Draws the traces. Answers are untrusted text: everything goes in by textContent.
// The form of the data is told in trace_data.py.
(() => {
  const data = JSON.parse(document.getElementById("trace-data").textContent);
  if (!data.traces.length) return;
  const byId = (id) => document.getElementById(id);
  const SOURCES = ["draft", "fuzzy", "target"];
  const WORDS = ["draft that the exact test accepts", "fuzzy draft", "the target's own token"];
  const text = (index) => data.strings[index];
  const NODE = { width: 92, height: 44, gapX: 26, gapY: 8 };
  let open = null; // { trace, turn, round } whose tree is shown

  function chunks(flat, width) {
    const rows = [];
    for (let i = 0; i < flat.length; i += width) rows.push(flat.slice(i, i + width));
    return rows;
  }
  const number = (value, digits = 4) =>
    value === null ? "-" : typeof value === "string" ? value : value.toFixed(digits);
  const visible = (token) => (token === "" ? "\u2205" : token.replace(/\n/g, "\u21b5\n"));
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

  // --- the answer ---------------------------------------------------------------------------
  const questionOf = (trace) => `${trace[0]}/${trace[2]}/${trace[3]}`;

  function fillPickers() {
    const seen = new Set();
    const runs = new Set(data.traces.map((trace) => trace[0]));
    for (const trace of data.traces) {
      if (seen.has(questionOf(trace))) continue;
      seen.add(questionOf(trace));
      const words = [`question ${trace[2]}`, trace[4]];
      if (runs.size > 1) words.unshift(text(trace[0]));
      if (trace[3]) words.push(`choice ${trace[3]}`);
      const label = words.filter((word) => word !== "").join(", ");
      byId("question").append(element("option", { value: questionOf(trace) }, label));
    }
  }

  function fillArms(question, wanted) {
    const picker = byId("arm");
    picker.replaceChildren();
    data.traces.forEach((trace, index) => {
      if (questionOf(trace) !== question) return;
      const selected = text(trace[1]) === wanted;
      picker.append(element("option", { value: index, selected }, text(trace[1])));
    });
    if (wanted === undefined) picker.selectedIndex = picker.options.length - 1; // the fuzziest
    return Number(picker.value);
  }

  function showTrace(index) {
    closeTree();
    const answer = byId("answer");
    answer.replaceChildren();
    const counts = [0, 0, 0];
    let rounds = 0;
    data.traces[index][5].forEach((turn, turnIndex) => {
      answer.append(element("h3", {}, `Turn ${turnIndex + 1}`));
      const details = element("details", {});
      details.append(element("summary", {}, "prompt"));
      details.append(element("div", { className: "prompt" }, text(turn[0])));
      answer.append(details);
      if (!turn[3]) {
        const words = "decoded again for this trace, the text came out otherwise than in the record";
        answer.append(element("p", { className: "warning" }, words));
      }
      const line = element("div", { className: "answer" });
      const first = element("span", { className: "token target" }, visible(text(turn[1])));
      first.dataset.tip = "from prefill: the target's own token";
      line.append(first);
      turn[2].forEach((round, roundIndex) => {
        for (const token of chunks(round[2], 6)) {
          counts[token[1]] += 1;
          const span = element("span", { className: `token ${SOURCES[token[1]]}` }, visible(text(token[0])));
          span.dataset.turn = turnIndex;
          span.dataset.round = roundIndex;
          span.dataset.tip = [
            `${JSON.stringify(text(token[0]))}: ${WORDS[token[1]]}`,
            `divergence ${number(token[2])}`,
            `target P ${number(token[3])}, draft Q ${number(token[4])}`,
            `regret ${number(token[5])} nats`,
            `round ${roundIndex + 1} of ${turn[2].length}`,
          ].join("\n");
          line.append(span);
        }
        rounds += 1;
      });
      answer.append(line);
    });
    for (const span of answer.querySelectorAll(".token")) {
      span.tabIndex = -1;
      span.setAttribute("role", "button");
    }
    const start = answer.querySelector(".token");
    if (start) start.tabIndex = 0;
    const all = counts[0] + counts[1] + counts[2];
    byId("counts").textContent =
      `${rounds} rounds, ${rounds ? (all / rounds).toFixed(2) : "-"} tokens a round: ` +
      `${counts[0]} exact drafts, ${counts[1]} fuzzy drafts, ${counts[2]} of the target's own ` +
      "(all that rounds emitted, the last round's untrimmed)";
  }

  // --- figures of a token -------------------------------------------------------------------
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
  /* Nodes of the drawing: the round's, and the target's own token behind the path. */
  function treeNodes(round) {
    const nodes = chunks(round[0], 4).map(([word, parent, p, q]) => ({
      word: text(word), parent, p, q, d: null, mark: "",
    }));
    const emitted = chunks(round[2], 6);
    round[1].forEach((index, step) => {
      nodes[index].mark = step && emitted[step - 1][1] === 1 ? "fuzzy" : "kept";
      if (emitted[step]) nodes[index].d = emitted[step][2];
    });
    const last = emitted[emitted.length - 1];
    const end = round[1][round[1].length - 1];
    nodes.push({ word: text(last[0]), parent: end, p: last[3], q: last[4], d: null, mark: "next" });
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

  function draw(name, attributes, content) {
    const made = document.createElementNS(byId("tree").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function drawNode(node) {
    const group = draw("g", { class: node.mark });
    const box = { x: node.x, y: node.y, width: NODE.width, height: NODE.height, rx: 4 };
    group.append(draw("rect", box));
    if (node.mark === "fuzzy") { // the double border
      const inner = { x: box.x + 3, y: box.y + 3, width: box.width - 6, height: box.height - 6, rx: 3 };
      group.append(draw("rect", { ...inner, class: "inner" }));
    }
    const at = { x: node.x + 7 };
    group.append(draw("text", { ...at, y: node.y + 15 }, brief(node.word)));
    const probs = node.parent < 0 ? "root" : `P ${number(node.p, 2)} Q ${number(node.q, 2)}`;
    group.append(draw("text", { ...at, y: node.y + 27, class: "small" }, probs));
    const third = node.mark === "fuzzy" ? "fuzzy " : node.mark === "next" ? "target" : "";
    const d = node.d === null ? "" : `D ${number(node.d, 3)}`;
    group.append(draw("text", { ...at, y: node.y + 38, class: "small" }, third + d));
    group.append(draw("title", {}, `${JSON.stringify(node.word)} P ${number(node.p)} Q ${number(node.q)}`));
    return group;
  }

  function openTree(trace, turn, round) {
    const rounds = data.traces[trace][5][turn]?.[2];
    if (!rounds?.[round]) return;
    open = { trace, turn, round };
    const nodes = treeNodes(rounds[round]);
    place(nodes);
    const tree = byId("tree");
    tree.replaceChildren();
    const width = Math.max(...nodes.map((node) => node.x)) + NODE.width + 6;
    const height = Math.max(...nodes.map((node) => node.y)) + NODE.height + 6;
    tree.setAttribute("width", width);
    tree.setAttribute("height", height);
    tree.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const node of nodes) {
      if (node.parent < 0) continue;
      const from = nodes[node.parent];
      const [x0, y0] = [from.x + NODE.width, from.y + NODE.height / 2];
      const [x1, y1] = [node.x, node.y + NODE.height / 2];
      const bend = (x0 + x1) / 2;
      tree.append(draw("path", { d: `M${x0} ${y0}C${bend} ${y0} ${bend} ${y1} ${x1} ${y1}`, class: node.mark }));
    }
    for (const node of nodes) tree.append(drawNode(node));
    const accepted = rounds[round][1].length - 1;
    const title = `Turn ${turn + 1}, round ${round + 1} of ${rounds.length}: ` +
      `${nodes.length - 2} drafts, ${accepted} accepted`;
    byId("round-title").textContent = title;
    tree.setAttribute("aria-label", `draft tree. ${title}`);
    byId("before").disabled = round === 0;
    byId("after").disabled = round === rounds.length - 1;
    byId("panel").hidden = false;
    for (const span of byId("answer").querySelectorAll(".token")) {
      const same = span.dataset.turn === String(turn) && span.dataset.round === String(round);
      span.classList.toggle("same-round", same);
    }
    const scroll = tree.parentElement; // the path's middle into view
    const middle = nodes[rounds[round][1].at(-1)].y;
    scroll.scrollTop = middle - scroll.clientHeight / 2;
    history.replaceState(null, "", `#trace=${trace}&turn=${turn}&round=${round}`);
  }

  function closeTree() {
    open = null;
    byId("panel").hidden = true;
    for (const span of byId("answer").querySelectorAll(".same-round")) span.classList.remove("same-round");
  }

  function openSpan(span) {
    if (span.dataset.round === undefined) return;
    openTree(Number(byId("arm").value), Number(span.dataset.turn), Number(span.dataset.round));
  }

  function fromHash() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const trace = data.traces[Number(wanted.get("trace") ?? NaN)];
    if (!trace) return false;
    byId("question").value = questionOf(trace);
    fillArms(questionOf(trace), text(trace[1]));
    showTrace(Number(wanted.get("trace")));
    if (wanted.has("round")) {
      openTree(Number(wanted.get("trace")), Number(wanted.get("turn") ?? 0), Number(wanted.get("round")));
    }
    byId("traces").scrollIntoView();
    return true;
  }

  // --- events -------------------------------------------------------------------------------
  byId("question").addEventListener("change", () => {
    const arm = byId("arm").selectedOptions[0]?.textContent;
    showTrace(fillArms(byId("question").value, arm));
  });
  byId("arm").addEventListener("change", () => showTrace(Number(byId("arm").value)));
  const answer = byId("answer");
  const tokenOf = (event) => event.target.closest?.(".token");
  answer.addEventListener("mouseover", (event) => { if (tokenOf(event)) showTip(tokenOf(event)); });
  answer.addEventListener("mouseout", hideTip);
  answer.addEventListener("focusin", (event) => { if (tokenOf(event)) showTip(tokenOf(event)); });
  answer.addEventListener("focusout", hideTip);
  answer.addEventListener("click", (event) => { if (tokenOf(event)) openSpan(tokenOf(event)); });
  answer.addEventListener("keydown", (event) => {
    const span = tokenOf(event);
    if (!span) return;
    if (event.key === "Enter" || event.key === " ") {
      openSpan(span);
      event.preventDefault();
    }
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...answer.querySelectorAll(".token")];
    const next = all[all.indexOf(span) + step];
    if (!next) return;
    span.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  byId("before").addEventListener("click", () => openTree(open.trace, open.turn, open.round - 1));
  byId("after").addEventListener("click", () => openTree(open.trace, open.turn, open.round + 1));
  byId("close").addEventListener("click", closeTree);
  addEventListener("hashchange", fromHash);

  byId("traces").hidden = false;
  fillPickers();
  if (!fromHash()) showTrace(fillArms(byId("question").value));
})();
