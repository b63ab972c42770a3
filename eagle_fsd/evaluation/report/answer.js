"use strict";
// An answer's tokens, what is known of each, and the tree of a round: of the report's page, and of
// the demo's. They are untrusted text: everything goes in by textContent.
const drawing = (() => {
  const WORDS = { draft: "accepted draft", fuzzy: "fuzzy draft", target: "the target's own token" };
  const NODE = { width: 92, height: 44, gapX: 26, gapY: 8 };

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

  // --- tokens -------------------------------------------------------------------------------
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

  // a token that ends an answer is none of its text, and has a sign of its own
  const traced = (made, text) => made.end ? "\u25a0" : text ?? made.text;

  /* The spans of a turn's tokens, of which those of rounds have data-round. `texts` of the turn are
     the tokens' parts of its text, where one by itself may be half a character. */
  function tracedTokens(turn, greedy) {
    const { first, texts = [] } = turn;
    const spans = [token(traced(first, texts[0]), "target", ["from prefill: the target's own token"])];
    turn.rounds.forEach((round, roundIndex) => {
      for (const made of round.emitted) {
        const tip = [`${quoted(made.text)}: ${WORDS[made.source]}`];
        if (made.source === "fuzzy") {
          const who = greedy ? "exact would have emitted" : "the target's most likely token is";
          tip.push(`${who} ${quoted(made.best)} (P ${number(made.best_prob, 2)})`);
        }
        tip.push(`P ${number(made.target_prob)}, Q ${number(made.draft_prob)}, ` +
          `D ${number(made.divergence)}, regret ${number(made.regret)} nats`);
        tip.push(`round ${roundIndex + 1} of ${turn.rounds.length}` + (made.end ? ", the end of the answer" : ""));
        const span = token(traced(made, texts[spans.length]), made.source, tip);
        if (made.end) span.classList.add("end");
        span.dataset.round = roundIndex;
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
  function showTip(tip, span) {
    tip.textContent = span.dataset.tip;
    tip.hidden = false;
    const at = span.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${at.bottom + scrollY + 6}px`;
  }
  function showTips(area, tip) {
    for (const [name, shows] of [["mouseover", true], ["mouseout", false], ["focusin", true], ["focusout", false]]) {
      area.addEventListener(name, (event) => {
        const span = event.target.closest?.("[data-tip]");
        if (!shows) tip.hidden = true;
        else if (span) showTip(tip, span);
      });
    }
  }

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

  function svg(tree, name, attributes, content) {
    const made = document.createElementNS(tree.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function drawNode(tree, node) {
    const group = svg(tree, "g", { class: node.mark });
    const box = { x: node.x, y: node.y, width: NODE.width, height: NODE.height, rx: 4 };
    group.append(svg(tree, "rect", box));
    const at = { x: node.x + 7 };
    group.append(svg(tree, "text", { ...at, y: node.y + 15 }, brief(node.word)));
    const probs = node.parent < 0 ? "root" : `P ${number(node.p, 2)} Q ${number(node.q, 2)}`;
    group.append(svg(tree, "text", { ...at, y: node.y + 27, class: "small" }, probs));
    const third = node.mark === "fuzzy" ? "fuzzy " : node.mark === "next" ? "target " : "";
    const d = node.d === null ? "" : `D ${number(node.d)}`;
    group.append(svg(tree, "text", { ...at, y: node.y + 38, class: "small" }, third + d));
    group.append(svg(tree, "title", {}, `${quoted(node.word)} P ${number(node.p, 4)} Q ${number(node.q, 4)}`));
    return group;
  }

  /* A round into an <svg>, whose parent scrolls; says in words what it shows. */
  function drawTree(tree, round) {
    const nodes = treeNodes(round);
    place(nodes);
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
      tree.append(svg(tree, "path", { d: `M${x0} ${y0}C${bend} ${y0} ${bend} ${y1} ${x1} ${y1}`, class: node.mark }));
    }
    for (const node of nodes) tree.append(drawNode(tree, node));
    const scroll = tree.parentElement; // the path's middle into view
    scroll.scrollTop = nodes[round.path.at(-1)].y - scroll.clientHeight / 2;
    return `${round.nodes.length - 1} drafts, ${round.path.length - 1} accepted`;
  }

  return { element, number, quoted, token, takeThought, tracedTokens, showTips, drawTree };
})();
