"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const KINDS = [...new Set(data.examples.flatMap((example) => Object.keys(example.attention)))];
const TITLES = { cross: "Cross-attention" }; // other kinds are self-attention
const HINTS = {
  "source source":
    "Look for tokens that find what belongs to them: a pronoun that looks at its noun, an adjective at its word.",
  "predicted read":
    "Look for what the next token depends on: the last token, the subject, an earlier copy of the same words.",
  "predicted source":
    "Look for the source tokens with the strongest colour: they are often what the model translates next.",
  "patches patches":
    "Look for the strokes that decide: the chosen patch looks most at the patches with the strongest colour. Many heads look at the background.",
  "places places": "Look for the extent of an object: its places look at each other.",
  "predicted places": "Look for the edges of the box: they decide what an object query finds, and how large it is.",
};
const SIDES = ["queries", "keys"];
const UNITS = { texts: "words", labels: "pieces" }; // as the data call them, and the page
const DRAWINGS = ["lines", "matrix"];
const ROW = 24; // pixels a token
const BOX = { left: 28, across: 112, down: 46, width: 98, height: 28 }; // of a hypothesis of the beam
const NARROW = 480;
const PHONE = 700; // pixels; narrower windows begin with folded controls
const LEAST_VISIBLE = 0.004; // of the largest number: thinner lines and paler cells are left out
const LEAST_FAINT = 0.05; // of the largest number: thinner lines of tokens that are not active are left out
const STRONGEST = 5; // tokens named in the reading
const DIGITS = 4;

const view = {
  example: 0,
  other: -1,
  kind: "",
  layer: -1, // negative numbers count from the last
  head: "mean",
  measure: "weights",
  unit: "texts",
  drawing: "lines",
  scale: "all",
  step: 0, // of the queries, from 1; 0 is the default
};
// The layer and the head that were chosen last. The view shows others while its kind of attention lacks them.
const wanted = { layer: view.layer, head: view.head };
// The token under the mouse or with the focus: {side: "queries" or "keys", index in the first example}.
let pointed = null;

const exampleNow = () => data.examples[view.example];
const mapNow = () => exampleNow().attention[view.kind];

/** The track whose elements the steps count: the track of the queries, otherwise of the predictions. */
const trackOf = (example) =>
  example.tracks[mapNow() ? mapNow().queries : "predicted"] || { labels: [""], words: [0] };
const steppedTrack = () => trackOf(exampleNow());

const looksAtImage = () => Boolean(mapNow() && exampleNow().tracks[mapNow().keys].grid);

/**
 * The step, from 1. The default of an image is the class token, or the surest object query. The default of a text
 * is the first token that differs from another example with the same beginning, such as a pronoun, otherwise the
 * middle. A model that only reads does not choose the first difference, so the default is the next.
 */
function stepNow() {
  const { labels } = steppedTrack();
  if (view.step || looksAtImage()) return view.step || 1;
  const other = data.examples.find((example) => example !== exampleNow());
  const differs = (label, i) => label !== trackOf(other).labels[i];
  const first = other ? labels.findIndex(differs) : -1;
  if (first < 1) return Math.ceil(labels.length / 2);
  const next = exampleNow().tracks.source ? -1 : labels.findIndex((label, i) => i > first && differs(label, i));
  return Math.max(first, next) + 1;
}

/** The query of the step, which is a word or a piece. */
const activeQuery = () => (view.unit === "texts" ? steppedTrack().words[stepNow() - 1] : stepNow() - 1);

/** The token whose lines are drawn: the one that is pointed at, else the query of the step. */
const activeToken = () => pointed || { side: "queries", index: activeQuery() };

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

/**
 * Of one example and head: {rows, queries, keys: labels, tracks of both, largest: that a number may be, indices}.
 * `indices` has the index in the first example of each query and key, which identifies a token in all drawings.
 */
function matrixOf(number, head, unit) {
  const { attention, tracks } = data.examples[number];
  const map = attention[view.kind];
  const norms = view.measure === "norms" && head !== "rollout";
  const whole = head === "rollout" || head === "mean";
  const packed = whole ? (norms ? map.joint_norms : map[head]) : norms ? map.norms : map.weights;
  const [queries, keys] = [tracks[map.queries], tracks[map.keys]];
  let rows = whole ? slice(packed, view.layer) : slice(packed, view.layer, head);
  if (unit === "texts") rows = mergeWords(rows, queries.words, keys.words);
  const largest = view.scale === "view" ? largestOf(rows) : norms ? packed.scale : 1;
  const labels = { queries: queries[unit], keys: keys[unit] };
  const indices = { queries: [...labels.queries.keys()], keys: [...labels.keys.keys()] };
  return { rows, ...labels, indices, tracks: { queries, keys }, largest: largest || 1, signed: false };
}

const largestOf = (rows) => Math.max(0, ...rows.map((row) => Math.max(0, ...row.map(Math.abs))));

/** The first matrix minus the second, between tokens that correspond. */
function difference(first, second, pairs) {
  const name = (a, b) => (a === b ? a : `${a} / ${b}`);
  const names = (side) => pairs[side].map(([i, j]) => name(first[side][i], second[side][j]));
  const rows = pairs.queries.map(([i, j]) =>
    Float64Array.from(pairs.keys, ([k, l]) => first.rows[i][k] - second.rows[j][l]),
  );
  const largest = (view.scale === "view" && largestOf(rows)) || first.largest;
  const labels = { queries: names("queries"), keys: names("keys") };
  const indices = { queries: pairs.queries.map(([i]) => i), keys: pairs.keys.map(([i]) => i) };
  const { queries, keys } = first.tracks;
  const tracks = { queries: { ...queries, boxes: null }, keys };
  return { rows, ...labels, indices, tracks, largest, signed: true };
}

/** The `indices` of tokens of the second example. A token that the first example lacks has a negative number. */
function indicesInFirst(tokens, pairs) {
  const indices = new Map(pairs.map(([i, j]) => [j, i]));
  return tokens.map((_, j) => indices.get(j) ?? -1 - j);
}

/** A token with the number of its row or column in a matrix as the index, which is -1 if there is none. */
const inMatrix = (matrix, { side, index }) => ({ side, index: matrix.indices[side].indexOf(index) });

/** Pairs of tokens of two examples that correspond, of both sides. */
function correspondences(first, second) {
  const turned = first > second;
  const found = data.alignments[turned ? `${second},${first}` : `${first},${second}`];
  const pairs = (track) => found[`${track} ${view.unit}`].map(([i, j]) => (turned ? [j, i] : [i, j]));
  return { queries: pairs(mapNow().queries), keys: pairs(mapNow().keys) };
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
  if (matrix.tracks.keys.grid) return drawPatches(parent, matrix, name);
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
  listenToTokens(svg, lists);
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
      const { queries, keys } = matrix.indices;
      curves.push({ path, queries: queries[i], keys: keys[j], strength });
    }),
  );
  return curves;
}

/** The lines of the active token are drawn. Without a token under the mouse, the others stay faint. */
function showCurve(curve) {
  const active = activeToken();
  const isActive = curve[active.side] === active.index;
  curve.path.style.display = isActive || (!pointed && curve.strength >= LEAST_FAINT) ? "" : "none";
  curve.path.classList.toggle("faint", !isActive);
}

function addTokens(svg, matrix, { width, edge, label, left, right, y }, side) {
  const [names, x, labelX, numberX, anchor] =
    side === "queries"
      ? ["Queries", edge, left - 6, edge - 4, "end"]
      : ["Keys", right, right + 6, width - edge + 4, "start"];
  const list = add(svg, "g", { role: "listbox", "aria-label": names });
  return matrix[side].map((token, index) => {
    const option = addOption(list, "token", matrix, side, index);
    add(option, "rect", { x, y: y(index) - ROW / 2 + 1, width: label, height: ROW - 2, rx: 4 });
    add(option, "text", { x: labelX, y: y(index), "text-anchor": anchor }, cut(token, label - 8));
    const place = { x: numberX, y: y(index), "text-anchor": anchor, class: "number", "aria-hidden": "true" };
    return { option, number: add(svg, "text", place) };
  });
}

/** The group of one token or patch, which can be pointed at. */
function addOption(parent, kind, matrix, side, index) {
  const option = add(parent, "g", {
    class: kind,
    role: "option",
    tabindex: index ? -1 : 0,
    "aria-selected": "false",
    "aria-label": describeToken(matrix, side, index),
    "data-side": side,
    "data-index": matrix.indices[side][index],
  });
  add(option, "title", {}, matrix[side][index]);
  return option;
}

function showOption(option) {
  const active = activeToken();
  const isActive = active.side === option.dataset.side && active.index === Number(option.dataset.index);
  option.classList.toggle("active", isActive);
  option.setAttribute("aria-selected", String(isActive));
}

function showToken({ option, number }, side, index, matrix) {
  showOption(option);
  const active = inMatrix(matrix, activeToken());
  const value = active.side === side ? undefined : numberBetween(matrix, active, index);
  number.textContent = value === undefined ? "" : shown(value, matrix.signed).replace(/^([+-]?)0\./, "$1.");
}

const numberBetween = (matrix, token, index) =>
  token.side === "queries"
    ? (matrix.rows[token.index] || [])[index]
    : (matrix.rows[index] || [])[token.index];

/** The largest numbers of a token, as text. */
function describeToken(matrix, side, index) {
  const others = side === "queries" ? matrix.keys : matrix.queries;
  const [colon, comma] = matrix.tracks.keys.grid ? [": ", "; "] : [" ", ", "]; // names of patches have commas
  const told = others
    .map((token, i) => [token, numberBetween(matrix, { side, index }, i) || 0])
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .slice(0, STRONGEST)
    .filter(([, number]) => number)
    .map(([token, number]) => `${token}${colon}${shown(number, matrix.signed)}`)
    .join(comma);
  const label = matrix[side][index];
  const verb = matrix.signed ? "difference:" : side === "queries" ? "looks at" : "is looked at by";
  return `${label} ${verb} ${told || "nothing"}`;
}

/** Tokens of a drawing: pointing shows one, a click on a query chooses its step, arrow keys move. */
function listenToTokens(svg, lists) {
  for (const event of ["pointerover", "focusin"]) svg.addEventListener(event, point);
  for (const event of ["pointerleave", "focusout"]) svg.addEventListener(event, release);
  svg.addEventListener("click", choose);
  svg.addEventListener("keydown", (event) => moveToken(event, lists));
}

const tokenOf = (event) => {
  const token = event.target.closest("[data-side]");
  return token && { side: token.dataset.side, index: Number(token.dataset.index) };
};

function point(event) {
  pointed = tokenOf(event);
  updateActive();
}

function release() {
  pointed = null;
  updateActive();
}

function choose(event) {
  const token = tokenOf(event);
  if (token && token.side === "queries" && token.index >= 0) change({ step: stepOf(token.index) });
}

/** The step of the first piece of a query, which is a word or a piece. */
const stepOf = (index) => (view.unit === "texts" ? steppedTrack().words.indexOf(index) : index) + 1;

/** Arrow keys move from token to token, and between queries and keys. */
function moveToken(event, lists) {
  const token = event.target.closest("[data-side]");
  if (!token) return;
  const { side } = token.dataset;
  const index = lists[side].findIndex(({ option }) => option === token);
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return choose(event);
  }
  const across = { ArrowLeft: "queries", ArrowRight: "keys" }[event.key];
  const list = lists[across || side];
  const moves = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: list.length - 1 };
  const target = across ? index : moves[event.key];
  if (target === undefined) return;
  event.preventDefault();
  const next = list[Math.max(0, Math.min(list.length - 1, target))].option;
  token.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

// ---- patches of an image

/** The image twice: the left one shows the query, the right one is tinted where the query looks. */
function drawPatches(parent, matrix, name) {
  const size = Math.min(300, (widthOf(parent) - ROW) / 2);
  const gridOf = (side) => matrix.tracks[side].grid || [0, 1];
  // Tokens before the patches, such as the class token, and queries without a place in the image become bars.
  const barsOf = (side) => matrix[side].length - gridOf(side)[0] * gridOf(side)[1];
  const box = { width: 2 * size + ROW, height: size + ROW * (1 + Math.max(...SIDES.map(barsOf))) + 4 };
  const viewBox = `0 0 ${box.width} ${box.height}`;
  const svg = add(parent, "svg", { ...box, viewBox, role: "group", "aria-label": name });
  const titles = { queries: "query", keys: "what it looks at" };
  const lists = {};
  const lefts = { queries: 0, keys: size + ROW };
  for (const side of SIDES) {
    add(svg, "text", { x: lefts[side], y: ROW / 2, class: "axis" }, titles[side]);
    const place = { x: lefts[side], y: ROW, width: size, height: size, preserveAspectRatio: "none" };
    add(svg, "image", { ...place, href: matrix.tracks.keys.picture });
  }
  for (const side of SIDES) {
    const left = lefts[side];
    const [rows, columns] = gridOf(side);
    const list = add(svg, "g", { role: "listbox", "aria-label": side === "queries" ? "Queries" : "Keys" });
    lists[side] = matrix[side].map((label, index) => {
      const option = addOption(list, "patch", matrix, side, index);
      const patch = index - barsOf(side);
      const [width, height] = [size / columns, size / rows];
      const y = ROW + (patch < 0 ? size + 4 + ROW * index : height * Math.floor(patch / columns));
      const cell = { x: left + width * (patch % columns), y, width, height };
      const bar = { x: left, y, width: size, height: ROW - 4 };
      const rect = add(option, "rect", patch < 0 ? bar : cell);
      if (patch < 0) add(option, "text", { x: left + 6, y: y + ROW / 2 - 2 }, label);
      const [x, top, right, bottom] = matrix.tracks[side].boxes?.[index] || [];
      const found = { y: ROW + size * top, width: size * (right - x), height: size * (bottom - top) };
      for (const [kind, shift] of right ? [["box", 0], ["box copy", lefts.keys]] : [])
        add(option, "rect", { ...found, x: size * x + shift, class: kind });
      return { option, rect };
    });
  }
  listenToTokens(svg, lists);
  return () => showTints(lists, matrix);
}

/** Tints each patch by its number, as a share of the largest number of the active patch. */
function showTints(lists, matrix) {
  const active = inMatrix(matrix, activeToken());
  const other = SIDES.find((side) => side !== active.side);
  const numbers = lists[other].map((_, index) => numberBetween(matrix, active, index) || 0);
  const largest = largestOf([numbers]) || 1;
  for (const side of SIDES)
    lists[side].forEach(({ option, rect }, index) => {
      showOption(option);
      const strength = side === other ? numbers[index] / largest : 0;
      rect.style.fill = matrix.signed && strength > 0 ? "var(--first)" : "var(--second)";
      rect.style.fillOpacity = (0.85 * Math.abs(strength)).toFixed(3);
    });
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
    "aria-label": `${name}: matrix. The table below has its numbers.`,
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
    const { side, index } = inMatrix(matrix, activeToken());
    mark.style.display = index < 0 ? "none" : "";
    const row = { x: 0, y: cell * index, width: size[0], height: cell };
    const column = { x: cell * index, y: 0, width: cell, height: size[1] };
    for (const [name, value] of Object.entries(side === "queries" ? row : column)) mark.setAttribute(name, value);
  };
}

// ---- all heads

function drawHeads() {
  const parent = clear(byId("heads"));
  const [layers, heads] = mapNow().weights.shape;
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
  const packed = view.measure === "norms" ? mapNow().norms : mapNow().weights;
  const rows = slice(packed, layer, head);
  const possible = view.measure === "norms" ? packed.scale : 1;
  const largest = (view.scale === "view" ? largestOf(rows) : possible) || 1;
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--first").trim();
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  rows.forEach((row, i) =>
    row.forEach((number, j) => {
      const alpha = Math.min(255, Math.round((255 * number) / largest));
      image.data.set([red, green, blue, alpha], 4 * (i * canvas.width + j));
    }),
  );
  context.putImageData(image, 0, 0);
}

function selectHead(event) {
  const button = event.target.closest("button");
  if (button) change({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
}

const headButton = (layer, head) => byId("heads").querySelector(`[data-layer="${layer}"][data-head="${head}"]`);

function moveHead(event) {
  const button = event.target.closest("button");
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!button || !move) return;
  event.preventDefault();
  const next = headButton(Number(button.dataset.layer) + move[0], Number(button.dataset.head) + move[1]);
  if (next) next.focus();
}

// ---- predictions

function drawPredictions() {
  const { tracks, predictions, beam, title, result } = exampleNow();
  const predicted = tracks.predicted ? tracks.predicted.labels : [];
  const reads = steppedTrack() === tracks.read; // an encoder predicts a token where it reads one
  const counts = reads || steppedTrack() === tracks.predicted; // else the steps count something else
  const step = counts ? stepNow() : tracks.read ? predicted.length : 1;
  const { choices } = predictions[Math.max(step, 1) - 1] || { choices: [] };
  const texts = clear(byId("texts"));
  add(texts, "span", { dir: "auto" }, title);
  if (result) texts.append(" → ");
  add(texts, "b", { dir: "auto" }, result);
  byId("tokens-part").hidden = !predicted.length;
  const list = clear(byId("probabilities"));
  predicted.forEach((label, i) => {
    const item = addBar(list, label, predictions[i].probability);
    item.classList.toggle("active", i + 1 === step);
    if (counts) item.addEventListener("click", () => change({ step: i + 1 }));
  });
  const read = tracks.read && `${reads ? "for" : "after"} “${tracks.read.labels[step - 1]}”`;
  const place = read ? `at step ${step}, ${read}` : `for ${predicted[step - 1]}`;
  byId("choices-title").textContent = `Most probable ${predicted.length ? place : "classes"}`;
  byId("choices-title").hidden = !choices.length;
  const bars = clear(byId("choices"));
  const chosen = predicted.length ? predicted[step - 1] : result;
  for (const [label, probability] of choices)
    addBar(bars, label, probability).classList.toggle("chosen", label === chosen);
  byId("smoothing").hidden = byId("finished-part").hidden = byId("beam-part").hidden = !beam;
  if (!beam) return;
  const finished = clear(byId("finished"));
  for (const [labels, score] of beam.finished) {
    const item = add(finished, "li");
    add(item, "span", { class: "score" }, score.toFixed(3));
    add(item, "span", { class: "text", dir: "auto" }, joined(labels));
  }
  drawBeam(beam.steps, step === predicted.length ? beam.steps.length : step);
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
function drawBeam(steps, step) {
  const most = (chosen) => Math.max(...steps.map((nodes) => nodes.filter(chosen).length));
  const live = most((node) => !hasEnded(node));
  const width = BOX.left + BOX.across * (live + most(hasEnded)) + 4;
  const height = BOX.down * steps.length + 4;
  const svg = add(clear(byId("beam")), "svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    style: "max-width: none",
    role: "img",
    "aria-label": `Beam of ${live}: ${steps.length} steps`,
  });
  const place = (at, number) => {
    const nodes = steps[at];
    const column = hasEnded(nodes[number]) ? live + number - nodes.findIndex(hasEnded) : number;
    return [BOX.left + BOX.across * column, BOX.down * at + 2];
  };
  const edges = add(svg, "g");
  steps.forEach((nodes, at) => {
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
  add(group, "text", { x: x + 6, y: y + height / 2 }, cut(node.label, width - 40));
  const end = { x: x + width - 5, y: y + height / 2, "text-anchor": "end", class: "number" };
  const [short, long] = hasEnded(node)
    ? [node.score.toFixed(2), `ends with score ${node.score.toFixed(3)}`]
    : [
        node.probability.toFixed(2).replace(/^0/, ""),
        `probability ${node.probability.toFixed(DIGITS)}, log-probability so far ${node.log_probability.toFixed(3)}`,
      ];
  add(group, "text", end, short);
  add(group, "title", {}, `${node.label}: ${long}`);
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

// ---- the example, coloured

/** The tokens of the example: the query is framed, keys are as dark as the query looks at them. */
function drawStrip(matrix) {
  const strip = clear(byId("strip"));
  strip.hidden = Boolean(matrix.tracks.keys.grid);
  if (strip.hidden) return () => {};
  const isOneText = mapNow().queries === mapNow().keys;
  const rows = isOneText
    ? [["query, key", "queries", "keys"]]
    : [["query", "queries", ""], ["key", "", "keys"]];
  const tokens = rows.flatMap(([name, queries, keys]) => {
    add(strip, "span", {}, name);
    const text = add(strip, "div", { dir: "auto" });
    return matrix[queries || keys].map((label, index) => {
      const element = add(text, queries ? "button" : "span", queries ? { type: "button" } : {}, label);
      if (queries) element.addEventListener("click", () => change({ step: stepOf(index) }));
      return { element, queries, keys, index };
    });
  });
  return () => {
    const query = pointed && pointed.side === "queries" ? pointed.index : activeQuery();
    for (const { element, queries, keys, index } of tokens) {
      if (queries) element.setAttribute("aria-pressed", String(index === query));
      const share = keys ? Math.min(1, (matrix.rows[query] || [])[index] / matrix.largest || 0) : 0;
      element.style.background = `color-mix(in srgb, var(--first) ${Math.round(75 * share)}%, transparent)`;
    }
  };
}

// ---- the view

let updates = [];
let matrices = [];

function updateActive() {
  updates.forEach((update) => update());
  const told = matrices.flatMap(({ name, matrix }) => {
    const { side, index } = inMatrix(matrix, activeToken());
    if (index < 0) return [];
    const text = describeToken(matrix, side, index);
    return matrices.length > 1 ? `${name}: ${text}` : text;
  });
  byId("reading").textContent = told.join(" · ");
}

function drawFigures() {
  const parent = clear(byId("figures"));
  const read = (number) => ({
    name: data.examples[number].title,
    matrix: matrixOf(number, view.head, view.unit),
  });
  const first = read(view.example);
  matrices = [first];
  if (view.other >= 0) {
    const second = read(view.other);
    first.matrix.largest = second.matrix.largest = Math.max(first.matrix.largest, second.matrix.largest);
    const pairs = correspondences(view.example, view.other);
    for (const side of SIDES)
      second.matrix.indices[side] = indicesInFirst(second.matrix[side], pairs[side]);
    matrices.push(second, { name: "Difference", matrix: difference(first.matrix, second.matrix, pairs) });
  }
  const draw = view.drawing === "lines" ? drawLines : drawMatrix;
  // All figures first: the width of each depends on how many there are.
  const figures = matrices.map(({ name, matrix }) => addFigure(parent, name, matrix));
  updates = matrices.map(({ name, matrix }, i) => draw(figures[i], matrix, name));
  updates.push(drawStrip(first.matrix));
  updateActive();
  fillTables();
}

function addFigure(parent, name, matrix) {
  const figure = add(parent, "figure");
  const caption = add(figure, "figcaption");
  add(caption, "b", { dir: "auto" }, name);
  if (matrix.signed)
    caption.append(": blue where the first example has more, orange where the second has more");
  return figure;
}

function fillTables() {
  const tables = clear(byId("tables"));
  if (byId("numbers").querySelector("details").open)
    matrices.forEach(({ name, matrix }) => drawTable(tables, matrix, name));
}

const headName = () =>
  view.head === "mean" ? "mean of the heads" : view.head === "rollout" ? "rollout" : `head ${view.head}`;

function drawStep() {
  const count = steppedTrack().labels.length;
  Object.assign(byId("step"), { max: count, value: stepNow() });
  byId("step-value").textContent = `${stepNow()} of ${count}`;
  byId("step-name").textContent = steppedTrack().grid ? "Patch" : looksAtImage() ? "Query" : "Step";
  byId("step").parentElement.hidden = count < 2;
}

function draw() {
  const map = mapNow();
  const ids = ["more", "attention-title", "hint", "strip", "figures", "heads-section", "numbers", "help"];
  for (const id of ids) byId(id).hidden = !map;
  matrices = updates = [];
  if (map) {
    const [layers, heads] = map.weights.shape;
    const numbered = (count) => Array.from({ length: count }, (_, i) => [i, `${i}`]);
    fill(byId("layer"), numbered(layers), view.layer);
    const whole = [["mean", "mean of the heads"], ...(map.rollout ? [["rollout", "rollout"]] : [])];
    fill(byId("head"), [...whole, ...numbered(heads)], view.head);
    byId("measure-label").hidden = byId("norms-help").hidden = !map.norms;
    byId("unit").hidden = byId("text-help").hidden = looksAtImage();
    const title = TITLES[view.kind] || `Self-attention of the ${view.kind}`;
    byId("attention-title").textContent = `${title}, layer ${view.layer}, ${headName()}`;
    byId("view-name").textContent = `${view.kind}, layer ${view.layer}, ${headName()}`;
    byId("hint").textContent = HINTS[`${map.queries} ${map.keys}`] || "";
    drawFigures();
    drawHeads();
  }
  drawStep();
  drawPredictions();
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
  const count = data.examples.length;
  view.example = view.example >= 0 && view.example < count ? view.example : 0;
  if (view.other === view.example || view.other >= count) view.other = -1;
  if (!mapNow()) view.kind = ["cross", ...KINDS].find((kind) => exampleNow().attention[kind]) || "";
  if (view.step < 0 || view.step > steppedTrack().labels.length) view.step = 0;
  const map = mapNow();
  if (!map) return;
  const [layers, heads] = map.weights.shape;
  view.layer = wanted.layer < 0 ? layers - 1 : Math.min(layers - 1, wanted.layer);
  view.head = wanted.head === "rollout" && !map.rollout ? "mean" : wanted.head;
  if (typeof view.head === "number") view.head = Math.min(heads - 1, view.head);
  if (!map.norms) view.measure = "weights";
}

function set(changes) {
  Object.assign(view, changes);
  for (const name of Object.keys(wanted)) wanted[name] = changes[name] ?? wanted[name];
}

function change(changes) {
  const before = steppedTrack().labels.join();
  const onlyStep = Object.keys(changes).join() === "step";
  pointed = null;
  const focused = document.activeElement?.dataset.head ? { ...document.activeElement.dataset } : null;
  set(changes);
  check();
  if (steppedTrack().labels.join() !== before) view.step = 0;
  writeControls();
  if (onlyStep) {
    updateActive();
    drawStep();
    drawPredictions();
  } else draw();
  writeAddress();
  if (focused) headButton(focused.layer, focused.head).focus();
}

function writeControls() {
  for (const name of ["example", "other", "measure", "scale"]) byId(name).value = String(view[name]);
  for (const name of ["kind", "unit", "drawing"]) {
    const radio = byId(name).querySelector(`[value="${view[name]}"]`);
    if (radio) radio.checked = true;
  }
}

// The address: names as the controls show them. Layers and heads count from 0, as in names of parameters.

const toIndex = (text) => (/^\d+$/.test(text) ? Number(text) : undefined);
const toNumber = (text) => (toIndex(text) === undefined ? undefined : toIndex(text) - 1);
const oneOf = (names) => (text) => (names.includes(text) ? text : undefined);

/** For each name in the address: the field of the view, the value of a text, and the text of a value. */
const ADDRESS = {
  example: ["example", toNumber, (value) => value + 1],
  compare: ["other", (text) => toNumber(text) ?? -1, (value) => value + 1 || ""],
  attention: ["kind", oneOf(KINDS)],
  layer: ["layer", toIndex, (value) => (value < 0 ? "" : value)],
  head: ["head", (text) => toIndex(text) ?? oneOf(["mean", "rollout"])(text)],
  measure: ["measure", oneOf(["weights", "norms"])],
  unit: ["unit", (text) => Object.keys(UNITS).find((name) => UNITS[name] === text), (value) => UNITS[value]],
  drawing: ["drawing", oneOf(DRAWINGS)],
  scale: ["scale", oneOf(["all", "view"])],
  step: ["step", (text) => toIndex(text) ?? 0, (value) => value || ""],
};

function writeAddress() {
  const entries = Object.entries(ADDRESS)
    .map(([name, [field, , write]]) => [name, write ? write(view[field]) : view[field]])
    .filter(([, text]) => text !== "");
  history.replaceState(null, "", `#${new URLSearchParams(entries)}`);
}

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const [name, [field, read]] of Object.entries(ADDRESS)) {
    const value = read(address.get(name) || "");
    if (value !== undefined) set({ [field]: value });
  }
  check();
}

function start() {
  const examples = data.examples.map((example, i) => [i, `${i + 1}. ${example.title}`]);
  fill(byId("example"), examples, view.example);
  fill(byId("other"), [[-1, "none"], ...examples], view.other);
  byId("other-label").hidden = examples.length < 2;
  const named = (names) => names.map((name) => [name, name]);
  fillRadios(byId("kind"), "kind", named(KINDS));
  fillRadios(byId("unit"), "unit", Object.entries(UNITS));
  const picture = Object.values(data.examples[0].tracks).some(({ grid }) => grid) ? "picture" : "lines";
  fillRadios(byId("drawing"), "drawing", [["lines", picture], ["matrix", "matrix"]]);
  byId("more").open = window.innerWidth > PHONE;
  readAddress();

  const listen = (id, event, changes) =>
    byId(id).addEventListener(event, (happened) => change(changes(happened.target.value)));
  for (const name of ["example", "other", "layer"])
    listen(name, "change", (value) => ({ [name]: Number(value) }));
  listen("head", "change", (value) => ({ head: /^\d+$/.test(value) ? Number(value) : value }));
  for (const name of ["measure", "scale", "kind", "unit", "drawing"])
    listen(name, "change", (value) => ({ [name]: value }));
  listen("step", "input", (value) => ({ step: Number(value) }));
  byId("before").addEventListener("click", () => change({ step: Math.max(1, stepNow() - 1) }));
  byId("next").addEventListener("click", () =>
    change({ step: Math.min(steppedTrack().labels.length, stepNow() + 1) }),
  );
  byId("heads").addEventListener("click", selectHead);
  byId("heads").addEventListener("keydown", moveHead);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("numbers").querySelector("details").addEventListener("toggle", fillTables);
  document.addEventListener("keydown", (event) => event.key === "Escape" && release());
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
