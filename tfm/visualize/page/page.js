"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const PARTS = ["encoder", "decoder", "cross"];
const SIDES = ["queries", "keys"];
const EXPLANATIONS = {
  encoder: "Each source token (left) looks at the source (right).",
  decoder:
    "Each position, named by the token that it predicts (left), looks at the target tokens read so far (right).",
  cross: "Each position, named by the token that it predicts (left), looks at the source (right).",
};
const UNITS = { pieces: "pieces", texts: "words" }; // as the data call them, and the page
const DRAWINGS = ["both", "lines", "matrix"];
const ROW = 24; // pixels a token
const BOX = { left: 28, across: 112, down: 46, width: 98, height: 28 }; // of a hypothesis of the beam
const NARROW = 480;
const LEAST_VISIBLE = 0.004; // of the largest number: thinner lines and paler cells are left out
const STRONGEST = 5; // tokens named in the reading
const DIGITS = 4;

const view = {
  sentence: 0,
  other: -1,
  part: "",
  layer: 0,
  head: "mean",
  measure: "weights",
  unit: "pieces",
  drawing: "both",
  scale: "all",
  least: 0.05,
  step: 0,
};
let active = null; // the token whose lines alone are drawn: {side: "queries" or "keys", index, kept}

// ---- numbers

const unpacked = new WeakMap();

/** The numbers of a packed array, in order. */
function unpack(packed) {
  if (!unpacked.has(packed)) {
    const bytes = atob(packed.data);
    const numbers = new Float64Array(bytes.length / 2);
    for (let i = 0; i < numbers.length; i++) {
      numbers[i] = (bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) * (packed.scale / 65535);
    }
    unpacked.set(packed, numbers);
  }
  return unpacked.get(packed);
}

/** One matrix of a packed array [..., L, M], as rows. */
function slice(packed, ...index) {
  const [rows, columns] = packed.shape.slice(-2);
  const number = index.reduce((sum, i, axis) => sum * packed.shape[axis] + i, 0);
  const start = number * rows * columns;
  const numbers = unpack(packed);
  return Array.from({ length: rows }, (_, row) =>
    numbers.subarray(start + row * columns, start + (row + 1) * columns),
  );
}

/** Rows of pieces -> rows of words: the sum over the pieces of a key, the mean over those of a query. */
function mergeWords(rows, queries, keys) {
  const count = (words) => (words.length ? words[words.length - 1] + 1 : 0);
  const merged = Array.from({ length: count(queries) }, () => new Float64Array(count(keys)));
  const sizes = new Float64Array(count(queries));
  queries.forEach((word) => sizes[word]++);
  rows.forEach((row, i) =>
    row.forEach((weight, j) => (merged[queries[i]][keys[j]] += weight / sizes[queries[i]])),
  );
  return merged;
}

/** Of one sentence and head: {rows, queries, keys: labels, largest: that a number may be}. */
function matrixOf(number, head, unit) {
  const sentence = data.sentences[number];
  const part = sentence.parts[view.part];
  let packed, rows;
  if (head === "rollout") packed = part.rollout;
  else if (head === "mean") packed = view.measure === "norms" ? part.joint_norms : part.mean;
  else packed = view.measure === "norms" ? part.norms : part.weights;
  rows = head === "rollout" || head === "mean" ? slice(packed, view.layer) : slice(packed, view.layer, head);
  const [queries, keys] = [sentence.sides[part.queries], sentence.sides[part.keys]];
  if (unit === "texts") rows = mergeWords(rows, queries.words, keys.words);
  const possible = view.measure === "norms" && head !== "rollout" ? packed.scale : 1;
  const largest =
    (view.scale === "view" ? Math.max(0, ...rows.map((row) => Math.max(0, ...row))) : possible) || 1;
  return { rows, queries: queries[unit], keys: keys[unit], largest, signed: false };
}

/** The first matrix minus the second, between tokens that correspond. */
function difference(first, second, pairs) {
  const name = (a, b) => (a === b ? a : `${a} / ${b}`);
  const rows = pairs.queries.map(([i, j]) =>
    Float64Array.from(pairs.keys, ([k, l]) => first.rows[i][k] - second.rows[j][l]),
  );
  return {
    rows,
    queries: pairs.queries.map(([i, j]) => name(first.queries[i], second.queries[j])),
    keys: pairs.keys.map(([i, j]) => name(first.keys[i], second.keys[j])),
    largest:
      (view.scale === "view" && Math.max(...rows.map((row) => Math.max(...row.map(Math.abs))))) ||
      first.largest,
    signed: true,
  };
}

/** Pairs of tokens of two sentences that correspond, of both sides. */
function correspondences(first, second) {
  const turned = first > second;
  const found = data.alignments[turned ? `${second},${first}` : `${first},${second}`];
  const part = data.sentences[first].parts[view.part];
  const pairs = (side) => found[`${side} ${view.unit}`].map(([i, j]) => (turned ? [j, i] : [i, j]));
  return { queries: pairs(part.queries), keys: pairs(part.keys) };
}

const shown = (number, signed) => (signed && number > 0 ? "+" : "") + number.toFixed(DIGITS);
const percent = (number) => `${(100 * number).toFixed(2)} %`;

// ---- elements

const NAMESPACE = "http://www.w3.org/2000/svg";

function add(parent, tag, attributes = {}, text = null) {
  const element =
    parent instanceof SVGElement || tag === "svg"
      ? document.createElementNS(NAMESPACE, tag)
      : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return parent.appendChild(element);
}

const clear = (element) => (element.replaceChildren(), element);
const cut = (text, width) => {
  const most = Math.max(3, Math.floor(width / 7.4));
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
};

// ---- lines between tokens

/** Two columns of tokens, joined by lines as wide as their numbers; returns what follows the active token. */
function drawLines(parent, matrix, name) {
  const place = placeColumns(parent, matrix);
  const { width, height, left, right } = place;
  const viewBox = `0 0 ${width} ${height}`;
  const svg = add(parent, "svg", { width, height, viewBox, role: "group", "aria-label": name });
  add(svg, "text", { x: left - 4, y: ROW / 2, "text-anchor": "end", class: "axis" }, "query");
  add(svg, "text", { x: right + 4, y: ROW / 2, class: "axis" }, "key");
  const curves = addCurves(svg, matrix, place);
  const lists = {
    queries: addTokens(svg, matrix, place, "queries"),
    keys: addTokens(svg, matrix, place, "keys"),
  };
  svg.addEventListener("pointerover", (event) => point(event, false));
  svg.addEventListener("pointerleave", () => release(false));
  svg.addEventListener("click", (event) => point(event, true));
  svg.addEventListener("focusin", (event) => point(event, false));
  svg.addEventListener("keydown", (event) => moveToken(event, lists));
  return () => {
    curves.forEach(showCurve);
    for (const side of SIDES) lists[side].forEach((token, index) => showToken(token, side, index, matrix));
  };
}

/** Where the columns stand: numbers at both edges, then labels, and lines between `left` and `right`. */
function placeColumns(parent, matrix) {
  const width = widthOf(parent);
  const edge = width < NARROW ? 44 : 52;
  const label = Math.min(170, (width - 2 * edge) * 0.31);
  const height = ROW * (Math.max(matrix.queries.length, matrix.keys.length) + 1);
  const left = edge + label;
  return { width, height, edge, label, left, right: width - left, y: (index) => ROW * (index + 1.5) };
}

const widthOf = (parent) => Math.max(280, Math.min(parent.clientWidth || 700, 760));

function addCurves(svg, matrix, { left, right, y }) {
  const lines = add(svg, "g", { class: "lines", "aria-hidden": "true" });
  const middle = (left + right) / 2;
  const curves = [];
  matrix.rows.forEach((row, i) =>
    row.forEach((number, j) => {
      const strength = Math.abs(number) / matrix.largest;
      if (strength < LEAST_VISIBLE) return;
      const d = `M${left} ${y(i)}C${middle} ${y(i)} ${middle} ${y(j)} ${right} ${y(j)}`;
      const path = add(lines, "path", {
        d,
        "stroke-width": (0.6 + 9 * strength).toFixed(2),
        "stroke-opacity": (0.2 + 0.8 * Math.min(1, strength)).toFixed(3),
      });
      if (number < 0) path.classList.add("negative");
      curves.push({ path, queries: i, keys: j, strength });
    }),
  );
  return curves;
}

function showCurve(curve) {
  const chosen = active ? curve[active.side] === active.index : curve.strength >= view.least;
  curve.path.style.display = chosen ? "" : "none";
}

function addTokens(svg, matrix, { width, edge, label, left, right, y }, side) {
  const [names, x, labelX, numberX, anchor] =
    side === "queries"
      ? ["Queries", edge, left - 6, edge - 4, "end"]
      : ["Keys", right, right + 6, width - edge + 4, "start"];
  const list = add(svg, "g", { role: "listbox", "aria-label": names });
  return matrix[side].map((token, index) => {
    const option = add(list, "g", {
      class: "token",
      role: "option",
      tabindex: index ? -1 : 0,
      "aria-selected": "false",
      "aria-label": describeToken(matrix, side, index),
      "data-side": side,
      "data-index": index,
    });
    add(option, "rect", { x, y: y(index) - ROW / 2 + 1, width: label, height: ROW - 2, rx: 4 });
    add(option, "text", { x: labelX, y: y(index), "text-anchor": anchor }, cut(token, label - 8));
    add(option, "title", {}, token);
    const place = { x: numberX, y: y(index), "text-anchor": anchor, class: "number", "aria-hidden": "true" };
    return { option, number: add(svg, "text", place) };
  });
}

function showToken({ option, number }, side, index, matrix) {
  const isActive = Boolean(active) && active.side === side && active.index === index;
  option.classList.toggle("active", isActive);
  option.setAttribute("aria-selected", String(isActive && active.kept));
  const value = active && active.side !== side ? numberBetween(matrix, active, index) : undefined;
  number.textContent = value === undefined ? "" : shown(value, matrix.signed).replace(/^([+-]?)0\./, "$1.");
}

const numberBetween = (matrix, token, index) =>
  token.side === "queries"
    ? (matrix.rows[token.index] || [])[index]
    : (matrix.rows[index] || [])[token.index];

/** The largest numbers of a token, as text. */
function describeToken(matrix, side, index) {
  const others = side === "queries" ? matrix.keys : matrix.queries;
  const numbers = others.map((token, i) => ({
    token,
    number: numberBetween(matrix, { side, index }, i) || 0,
  }));
  const strongest = numbers
    .sort((a, b) => Math.abs(b.number) - Math.abs(a.number))
    .slice(0, STRONGEST)
    .filter(({ number }) => number);
  const told = strongest.map(({ token, number }) => `${token} ${shown(number, matrix.signed)}`).join(", ");
  const label = side === "queries" ? matrix.queries[index] : matrix.keys[index];
  const verb = matrix.signed ? "difference:" : side === "queries" ? "looks at" : "is looked at by";
  return `${label} ${verb} ${told || "nothing"}`;
}

function point(event, keep) {
  const token = event.target.closest(".token");
  if (!token) return;
  const { side, index } = token.dataset;
  const same = active && active.kept && active.side === side && active.index === Number(index);
  if (keep && same) return release(true);
  if (!keep && active && active.kept && event.type !== "focusin") return;
  active = { side, index: Number(index), kept: keep };
  updateActive();
}

function release(kept) {
  if (!active || (active.kept && !kept)) return;
  active = null;
  updateActive();
}

/** Arrow keys move from token to token, and between queries and keys. */
function moveToken(event, lists) {
  const token = event.target.closest(".token");
  if (!token) return;
  const { side, index } = token.dataset;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return point(event, true);
  }
  if (event.key === "Escape") return release(true);
  const across = { ArrowLeft: "queries", ArrowRight: "keys" }[event.key];
  const list = lists[across || side];
  const target = {
    ArrowUp: Number(index) - 1,
    ArrowDown: Number(index) + 1,
    Home: 0,
    End: list.length - 1,
    ArrowLeft: Number(index),
    ArrowRight: Number(index),
  }[event.key];
  if (target === undefined) return;
  event.preventDefault();
  const next = list[Math.max(0, Math.min(list.length - 1, target))].option;
  token.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

// ---- matrix

/** A cell for each query and key, darker for larger numbers. */
function drawMatrix(parent, matrix, name) {
  const width = widthOf(parent);
  const longest = (labels) => Math.max(3, ...labels.map((label) => [...label].length));
  const left = Math.min(width * 0.34, longest(matrix.queries) * 7.4 + 22);
  const cell = Math.max(7, Math.min(26, (width - left - 12) / matrix.keys.length));
  const below = Math.min(150, longest(matrix.keys) * 6.4 + 12);
  const size = [cell * matrix.keys.length, cell * matrix.queries.length];
  const full = Math.max(width, left + size[0] + 4);
  const height = size[1] + below + ROW + 16;
  const svg = add(parent, "svg", {
    class: cell < 16 ? "small" : "",
    width: full,
    height,
    viewBox: `0 0 ${full} ${height}`,
    role: "img",
    "aria-label": `${name}: matrix; the table below has its numbers`,
  });
  add(svg, "text", { x: left, y: 10, class: "axis" }, "rows: query; columns: key");
  const cells = add(svg, "g", { class: "cells", transform: `translate(${left} ${ROW})` });
  matrix.rows.forEach((row, i) =>
    row.forEach((number, j) => {
      const strength = Math.abs(number) / matrix.largest;
      const attributes = {
        x: cell * j,
        y: cell * i,
        width: cell,
        height: cell,
        "fill-opacity": strength < LEAST_VISIBLE ? 0 : Math.min(1, strength).toFixed(3),
      };
      const rect = add(cells, "rect", attributes);
      if (number < 0) rect.classList.add("negative");
      rect.dataset.told = `${matrix.queries[i]} → ${matrix.keys[j]}: ${shown(number, matrix.signed)}`;
    }),
  );
  add(cells, "rect", { width: size[0], height: size[1], class: "frame" });
  const mark = add(cells, "rect", { class: "mark" });
  const every = Math.ceil(13 / cell); // labels that touch are left out
  matrix.queries.forEach((label, i) => {
    if (i % every) return;
    const place = { x: left - 6, y: ROW + cell * (i + 0.5), "text-anchor": "end" };
    add(svg, "text", place, cut(label, left - 8));
  });
  matrix.keys.forEach((label, j) => {
    if (j % every) return;
    const place = `translate(${left + cell * (j + 0.5)} ${ROW + size[1] + 6}) rotate(-60)`;
    add(svg, "text", { transform: place, "text-anchor": "end" }, cut(label, below * 1.1));
  });
  svg.addEventListener("pointerover", (event) => {
    if (event.target.dataset.told) byId("reading").textContent = event.target.dataset.told;
  });
  return () => {
    mark.style.display = active ? "" : "none";
    if (!active) return;
    const isRow = active.side === "queries";
    const box = isRow
      ? { x: 0, y: cell * active.index, width: size[0], height: cell }
      : { x: cell * active.index, y: 0, width: cell, height: size[1] };
    for (const [name, value] of Object.entries(box)) mark.setAttribute(name, value);
  };
}

// ---- all heads

function drawHeads() {
  const parent = clear(byId("heads"));
  const { weights } = data.sentences[view.sentence].parts[view.part];
  const [layers, heads] = weights.shape;
  parent.style.gridTemplateColumns = `3.2em repeat(${heads}, minmax(0, 128px))`;
  add(parent, "span");
  for (let head = 0; head < heads; head++)
    add(parent, "span", {}, heads > 6 ? `${head}` : `head ${head}`);
  for (let layer = 0; layer < layers; layer++) {
    add(parent, "span", {}, `layer ${layer}`);
    for (let head = 0; head < heads; head++) {
      const chosen = layer === view.layer && head === view.head;
      const first = !layer && !head && view.head === "mean";
      const button = add(parent, "button", {
        type: "button",
        "aria-label": `layer ${layer}, head ${head}`,
        "aria-pressed": String(chosen),
        tabindex: chosen || first ? 0 : -1,
      });
      button.dataset.layer = layer;
      button.dataset.head = head;
      paint(add(button, "canvas", { "aria-hidden": "true" }), layer, head);
    }
  }
  if (!parent.querySelector("[tabindex='0']")) parent.querySelector("button").setAttribute("tabindex", "0");
}

function paint(canvas, layer, head) {
  const part = data.sentences[view.sentence].parts[view.part];
  const packed = view.measure === "norms" ? part.norms : part.weights;
  const rows = slice(packed, layer, head);
  const possible = view.measure === "norms" ? packed.scale : 1;
  const largest = (view.scale === "view" ? Math.max(...rows.map((row) => Math.max(...row))) : possible) || 1;
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const colour = parseInt(
    getComputedStyle(document.documentElement).getPropertyValue("--first").trim().slice(1),
    16,
  );
  rows.forEach((row, i) =>
    row.forEach((number, j) => {
      image.data.set(
        [
          colour >> 16,
          (colour >> 8) & 255,
          colour & 255,
          Math.min(255, Math.round((255 * number) / largest)),
        ],
        4 * (i * canvas.width + j),
      );
    }),
  );
  context.putImageData(image, 0, 0);
}

function selectHead(event) {
  const button = event.target.closest("button");
  if (button) change({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
}

function moveHead(event) {
  const button = event.target.closest("button");
  const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
    event.key
  ] || [0, 0];
  if (!button || (!down && !across)) return;
  event.preventDefault();
  const next = byId("heads").querySelector(
    `[data-layer="${Number(button.dataset.layer) + down}"][data-head="${Number(button.dataset.head) + across}"]`,
  );
  if (next) next.focus();
}

// ---- decoding

function drawDecoding() {
  const sentence = data.sentences[view.sentence];
  const steps = sentence.sides.predicted.pieces;
  const last = Math.max(steps.length, sentence.beam.length);
  const step = view.step || last;
  Object.assign(byId("step"), { max: last, value: step });
  byId("step-value").textContent = `${step} of ${last}`;
  const texts = clear(byId("texts"));
  add(texts, "span", { dir: "auto" }, sentence.text);
  texts.append(" → ");
  add(texts, "b", { dir: "auto" }, sentence.translation);
  const list = clear(byId("probabilities"));
  steps.forEach((piece, i) => {
    const item = addBar(list, piece, sentence.probabilities[i]);
    item.classList.toggle("active", i + 1 === step);
    item.classList.toggle("later", i + 1 > step);
    item.addEventListener("click", () => change({ step: i + 1 }));
  });
  const at = Math.min(step, steps.length) - 1;
  byId("choices-title").textContent =
    `Most probable at step ${at + 1}, after “${sentence.sides.read.pieces[at]}”`;
  const choices = clear(byId("choices"));
  for (const [piece, probability] of sentence.choices[at]) {
    addBar(choices, piece, probability).classList.toggle("chosen", piece === steps[at]);
  }
  const finished = clear(byId("finished"));
  for (const [pieces, score] of sentence.finished) {
    const item = add(finished, "li");
    add(item, "span", { class: "score" }, score.toFixed(3));
    add(item, "span", { class: "text", dir: "auto" }, joined(pieces));
  }
  drawBeam(sentence, step);
}

const joined = (pieces) =>
  pieces
    .filter((piece) => piece !== "</s>")
    .join("")
    .replaceAll("▁", " ")
    .trim();

function addBar(list, piece, probability) {
  const item = add(list, "li");
  add(item, "span", { class: "text" }, piece);
  add(item, "span", {}, percent(probability));
  add(add(item, "span"), "div", { class: "bar", style: `width: ${(100 * probability).toFixed(2)}%` });
  return item;
}

const hasEnded = (node) => node.score !== null;

/** A box for each hypothesis, a row for each step; those that have ended stand right of the live ones. */
function drawBeam(sentence, step) {
  const most = (chosen) => Math.max(...sentence.beam.map((nodes) => nodes.filter(chosen).length));
  const live = most((node) => !hasEnded(node));
  const width = BOX.left + BOX.across * (live + most(hasEnded)) + 4;
  const height = BOX.down * sentence.beam.length + 4;
  const svg = add(clear(byId("beam")), "svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    style: "max-width: none",
    role: "img",
    "aria-label": `Beam of ${live}: ${sentence.beam.length} steps`,
  });
  const place = (at, number) => {
    const nodes = sentence.beam[at];
    const column = hasEnded(nodes[number]) ? live + number - nodes.findIndex(hasEnded) : number;
    return [BOX.left + BOX.across * column, BOX.down * at + 2];
  };
  const edges = add(svg, "g");
  sentence.beam.forEach((nodes, at) => {
    const later = at >= step ? "later" : "";
    const row = { x: BOX.left - 8, y: BOX.down * at + 2 + BOX.height / 2, "text-anchor": "end" };
    add(svg, "text", { ...row, class: `number ${later}` }, `${at + 1}`);
    nodes.forEach((node, number) => {
      const kind = `${node.best ? "best" : ""} ${later}`;
      if (at) addEdge(edges, place(at - 1, node.parent), place(at, number), kind, node.best);
      addNode(svg, node, place(at, number), kind);
    });
  });
}

function addEdge(edges, [fromX, fromY], [toX, toY], kind, best) {
  const [start, end, half] = [fromY + BOX.height, toY, BOX.width / 2];
  const d = `M${fromX + half} ${start}C${fromX + half} ${end - 8} ${toX + half} ${start + 8} ${toX + half} ${end}`;
  const edge = add(edges, "path", { d, class: kind });
  if (!best) edges.prepend(edge); // below the best
}

function addNode(svg, node, [x, y], kind) {
  const group = add(svg, "g", { class: `node ${kind}` });
  const strength = 0.35 * (node.probability || 0);
  const { width, height } = BOX;
  add(group, "rect", { x, y, width, height, rx: 5, "fill-opacity": strength.toFixed(3) });
  add(group, "text", { x: x + 6, y: y + height / 2 }, cut(node.piece, width - 40));
  const end = { x: x + width - 5, y: y + height / 2, "text-anchor": "end", class: "number" };
  const [short, long] = hasEnded(node)
    ? [node.score.toFixed(2), `ends with score ${node.score.toFixed(3)}`]
    : [
        node.probability.toFixed(2).replace(/^0/, ""),
        `probability ${node.probability.toFixed(DIGITS)}, log-probability so far ${node.log.toFixed(3)}`,
      ];
  add(group, "text", end, short);
  add(group, "title", {}, `${node.piece}: ${long}`);
}

// ---- the table of numbers

function drawTable(parent, matrix, name) {
  const table = add(parent, "table");
  add(table, "caption", {}, `${name}; rows: query, columns: key`);
  const head = add(add(table, "thead"), "tr");
  add(head, "td");
  matrix.keys.forEach((key) => add(head, "th", { scope: "col" }, key));
  const body = add(table, "tbody");
  matrix.rows.forEach((row, i) => {
    const line = add(body, "tr");
    add(line, "th", { scope: "row" }, matrix.queries[i]);
    row.forEach((number) => add(line, "td", {}, shown(number, matrix.signed)));
  });
}

// ---- the view

let updates = [];
let matrices = [];

function updateActive() {
  updates.forEach((update) => update());
  const there = active ? matrices.filter(({ matrix }) => active.index < matrix[active.side].length) : [];
  const told = there.map(({ name, matrix }) => {
    const text = describeToken(matrix, active.side, active.index);
    return matrices.length > 1 ? `${name}: ${text}` : text;
  });
  byId("reading").textContent = told.join(" · ");
}

function drawFigures() {
  const parent = clear(byId("figures"));
  const first = {
    name: data.sentences[view.sentence].text,
    matrix: matrixOf(view.sentence, view.head, view.unit),
  };
  matrices = [first];
  if (view.other >= 0) {
    const second = {
      name: data.sentences[view.other].text,
      matrix: matrixOf(view.other, view.head, view.unit),
    };
    first.matrix.largest = second.matrix.largest = Math.max(first.matrix.largest, second.matrix.largest);
    const pairs = correspondences(view.sentence, view.other);
    matrices.push(second, { name: "Difference", matrix: difference(first.matrix, second.matrix, pairs) });
  }
  const kinds = { lines: [drawLines], matrix: [drawMatrix], both: [drawLines, drawMatrix] }[view.drawing];
  // All figures first: the width of each depends on how many there are.
  const drawings = kinds.flatMap((draw) =>
    matrices.map(({ name, matrix }) => ({ draw, name, matrix, figure: addFigure(parent, name, matrix) })),
  );
  updates = drawings.map(({ draw, name, matrix, figure }) => draw(figure, matrix, name));
  updateActive();
  fillTables();
}

function addFigure(parent, name, matrix) {
  const figure = add(parent, "figure");
  const caption = add(figure, "figcaption");
  add(caption, "b", { dir: "auto" }, name);
  if (matrix.signed) caption.append(": blue where the first sentence has more, orange where the second has");
  return figure;
}

function fillTables() {
  const tables = clear(byId("tables"));
  if (byId("numbers").querySelector("details").open)
    matrices.forEach(({ name, matrix }) => drawTable(tables, matrix, name));
}

const headName = () =>
  view.head === "mean" ? "mean of the heads" : view.head === "rollout" ? "rollout" : `head ${view.head}`;

function titleOf() {
  const part = view.part === "cross" ? "Cross-attention" : `Self-attention of the ${view.part}`;
  return `${part}, layer ${view.layer}, ${headName()}`;
}

function explain() {
  const isNorm = view.measure === "norms" && view.head !== "rollout";
  const largest = view.scale === "view" ? "the largest drawn" : "the largest possible";
  const numbers = isNorm ? "norms of weighted values" : "weights";
  return `${EXPLANATIONS[view.part]} Widths of lines and shades of cells are ${numbers}, from 0 to ${largest}.`;
}

function draw() {
  const parts = data.sentences[view.sentence].parts;
  const hasAttention = Object.keys(parts).length > 0;
  for (const id of ["controls", "attention", "heads-section", "numbers", "help"])
    byId(id).hidden = !hasAttention;
  if (hasAttention) {
    const part = parts[view.part];
    const [layers, heads] = part.weights.shape;
    fill(
      byId("layer"),
      Array.from({ length: layers }, (_, i) => [i, `${i}`]),
      view.layer,
    );
    const special = [["mean", "mean of the heads"], ...(part.rollout ? [["rollout", "rollout"]] : [])];
    fill(
      byId("head"),
      [...special, ...Array.from({ length: heads }, (_, i) => [i, `head ${i}`])],
      view.head,
    );
    byId("measure-label").hidden = byId("norms-help").hidden = !part.norms;
    byId("attention-title").textContent = titleOf();
    byId("explanation").textContent = explain();
    drawFigures();
    drawHeads();
  }
  drawDecoding();
}

function fill(select, options, value) {
  clear(select);
  for (const [key, text] of options) add(select, "option", { value: key }, text);
  select.value = String(value);
}

function fillRadios(fieldset, name, options) {
  for (const [key, text] of options) {
    const label = add(fieldset, "label");
    add(label, "input", { type: "radio", name, value: key });
    label.append(text);
  }
}

/** Brings every choice into its range. */
function check() {
  const count = data.sentences.length;
  view.sentence = view.sentence >= 0 && view.sentence < count ? view.sentence : 0;
  if (view.other === view.sentence || view.other >= count) view.other = -1;
  const parts = data.sentences[view.sentence].parts;
  if (!parts[view.part]) view.part = ["cross", ...Object.keys(parts)].find((part) => parts[part]) || "";
  const part = parts[view.part];
  if (!part) return;
  const [layers, heads] = part.weights.shape;
  view.layer = Math.max(0, Math.min(layers - 1, view.layer || 0));
  if (view.head === "rollout" && !part.rollout) view.head = "mean";
  if (typeof view.head === "number") view.head = Math.max(0, Math.min(heads - 1, view.head));
  if (!part.norms) view.measure = "weights";
  const steps = Math.max(
    data.sentences[view.sentence].sides.predicted.pieces.length,
    data.sentences[view.sentence].beam.length,
  );
  view.step = view.step > 0 && view.step < steps ? view.step : 0;
}

function change(changes) {
  if (["sentence", "other", "part", "unit"].some((name) => name in changes)) active = null;
  const focused =
    document.activeElement && document.activeElement.dataset.head !== undefined
      ? { ...document.activeElement.dataset }
      : null;
  Object.assign(view, changes);
  check();
  writeControls();
  draw();
  writeAddress();
  if (focused)
    byId("heads").querySelector(`[data-layer="${focused.layer}"][data-head="${focused.head}"]`).focus();
}

function writeControls() {
  byId("sentence").value = String(view.sentence);
  byId("other").value = String(view.other);
  byId("measure").value = view.measure;
  byId("scale").value = view.scale;
  byId("least").value = view.least;
  byId("least-value").textContent = view.least.toFixed(2);
  for (const name of ["part", "unit", "drawing"]) {
    const radio = byId(name).querySelector(`[value="${view[name]}"]`);
    if (radio) radio.checked = true;
  }
}

// The address: names as the controls show them. Layers and heads count from 0, as in names of parameters.

function writeAddress() {
  const entries = {
    sentence: view.sentence + 1,
    compare: view.other + 1 || "",
    part: view.part,
    layer: view.layer,
    head: view.head,
    measure: view.measure,
    unit: UNITS[view.unit],
    drawing: view.drawing,
    scale: view.scale,
    least: view.least,
    step: view.step || "",
    theme: byId("theme").value,
  };
  const address = new URLSearchParams(Object.entries(entries).filter(([, value]) => value !== ""));
  history.replaceState(null, "", `#${address}`);
}

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  const index = (name, missing) => (/^\d+$/.test(address.get(name) || "") ? Number(address.get(name)) : missing);
  const number = (name, missing) => index(name, missing + 1) - 1;
  const choice = (name, allowed, missing) =>
    allowed.includes(address.get(name)) ? address.get(name) : missing;
  const unit = Object.keys(UNITS).find((name) => UNITS[name] === address.get("unit"));
  Object.assign(view, {
    sentence: number("sentence", view.sentence),
    other: number("compare", view.other),
    part: choice("part", PARTS, view.part),
    layer: index("layer", view.layer),
    head: index("head", choice("head", ["mean", "rollout"], view.head)),
    measure: choice("measure", ["weights", "norms"], view.measure),
    unit: unit || view.unit,
    drawing: choice("drawing", DRAWINGS, view.drawing),
    scale: choice("scale", ["all", "view"], view.scale),
    least: address.has("least") ? Math.max(0, Math.min(0.5, Number(address.get("least")) || 0)) : view.least,
    step: number("step", -1) + 1,
  });
  setTheme(choice("theme", ["auto", "light", "dark"], "auto"));
}

function setTheme(theme) {
  byId("theme").value = theme;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function start() {
  const sentences = data.sentences.map((sentence, i) => [i, `${i + 1}. ${sentence.text}`]);
  fill(byId("sentence"), sentences, view.sentence);
  fill(byId("other"), [[-1, "none"], ...sentences], view.other);
  byId("other-label").hidden = sentences.length < 2;
  const parts = PARTS.filter((part) => data.sentences.some((sentence) => sentence.parts[part]));
  const named = (names) => names.map((name) => [name, name]);
  fillRadios(byId("part"), "part", named(parts));
  fillRadios(byId("unit"), "unit", Object.entries(UNITS));
  fillRadios(byId("drawing"), "drawing", named(DRAWINGS));
  readAddress();

  const listen = (id, event, changes) =>
    byId(id).addEventListener(event, (happened) => change(changes(happened.target.value)));
  listen("sentence", "change", (value) => ({ sentence: Number(value) }));
  listen("other", "change", (value) => ({ other: Number(value) }));
  listen("layer", "change", (value) => ({ layer: Number(value) }));
  listen("head", "change", (value) => ({ head: /^\d+$/.test(value) ? Number(value) : value }));
  listen("measure", "change", (value) => ({ measure: value }));
  listen("scale", "change", (value) => ({ scale: value }));
  for (const name of ["part", "unit", "drawing"]) listen(name, "change", (value) => ({ [name]: value }));
  listen("least", "input", (value) => ({ least: Number(value) }));
  listen("step", "input", (value) => ({ step: Number(value) }));
  const steps = () => Number(byId("step").max);
  byId("before").addEventListener("click", () => change({ step: Math.max(1, (view.step || steps()) - 1) }));
  byId("next").addEventListener("click", () => change({ step: (view.step || steps()) + 1 }));
  byId("theme").addEventListener("change", (event) => (setTheme(event.target.value), change({})));
  byId("heads").addEventListener("click", selectHead);
  byId("heads").addEventListener("keydown", moveHead);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("numbers").querySelector("details").addEventListener("toggle", fillTables);
  document.addEventListener("keydown", (event) => event.key === "Escape" && release(true));
  window.addEventListener("hashchange", () => (readAddress(), change({})));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) draw();
    width = window.innerWidth;
  });
  window.addEventListener("beforeprint", draw);
  change({});
}

start();
