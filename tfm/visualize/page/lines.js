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
  const widest = (matrix.signed ? "+" : "") + largestOf(matrix.rows).toFixed(DIGITS);
  const edge = Math.max(width < NARROW ? 0 : 52, textWidth(widest, 11) + 6);
  const lines = width < NARROW ? LEAST_LINE / 2 : LEAST_LINE;
  const room = Math.min(170, (width - 2 * edge - lines) / 2);
  const label = Math.min(room, Math.max(60, longestOf([...matrix.queries, ...matrix.keys]) + 14));
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
    add(option, "text", { x: labelX, y: y(index), "text-anchor": anchor }, cut(token, label - 12));
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
    .map(([token, number]) => `${isolate(token)}${colon}${shown(number, matrix.signed)}`)
    .join(comma);
  const label = isolate(matrix[side][index]);
  const verb = matrix.signed ? "difference:" : side === "queries" ? "looks at" : "is looked at by";
  return `${label} ${verb} ${told || "nothing"}`;
}

/** Tokens of a drawing: pointing shows one, a click on a query chooses its step, arrow keys move. */
function listenToTokens(svg, lists) {
  svg.addEventListener("pointerover", point);
  svg.addEventListener("pointerleave", release);
  // Not of the drawing itself: Chromium gives the focus to a drawing that listens to it.
  svg.parentElement.addEventListener("focusin", point);
  svg.parentElement.addEventListener("focusout", release);
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
