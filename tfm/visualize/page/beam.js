// ---- beam

const hasEnded = (node) => node.score !== null;

let isWholeBeamShown = false;

/** The probability or the score of a node, as its box shows it. */
const nodeNumber = (node) =>
  hasEnded(node) ? node.score.toFixed(2) : node.probability.toFixed(2).replace(/^0/, "");

/**
 * A box for each hypothesis, a row for each position. Those that have ended stand right of the live ones. The rows
 * end at the position that is shown, because what the search does later says nothing about it.
 */
function drawBeam(steps, step) {
  const end = isWholeBeamShown ? steps.length : Math.min(step, steps.length);
  const start = isWholeBeamShown ? 0 : Math.max(0, end - BEAM_ROWS);
  const drawn = steps.slice(start, end);
  const most = (isCounted) => Math.max(...drawn.map((nodes) => nodes.filter(isCounted).length));
  const live = most((node) => !hasEnded(node));
  const needed = drawn.flat().map((node) => textWidth(node.label) + textWidth(nodeNumber(node), 11) + 20);
  const boxWidth = Math.min(BOX.most, Math.max(BOX.least, ...needed));
  const across = boxWidth + BOX.gap;
  const width = BOX.left + across * (live + most(hasEnded)) + 4;
  const height = BOX.down * drawn.length + 4;
  const svg = add(clear(byId("beam")), "svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    style: "max-width: none",
    role: "img",
    "aria-label": `Beam of ${live}: positions ${start + 1} to ${end} of ${steps.length}`,
  });
  const place = (at, number) => {
    const nodes = steps[at];
    const column = hasEnded(nodes[number]) ? live + number - nodes.findIndex(hasEnded) : number;
    return [BOX.left + across * column, BOX.down * (at - start) + 2];
  };
  const edges = add(svg, "g");
  drawn.forEach((nodes, row) => {
    const at = start + row;
    const later = at >= step ? "later" : "";
    const rowLabel = { x: BOX.left - 8, y: BOX.down * row + 2 + BOX.height / 2, "text-anchor": "end" };
    add(svg, "text", { ...rowLabel, class: `number ${later}` }, `${at + 1}`);
    nodes.forEach((node, number) => {
      const kind = `${node.best ? "best" : ""} ${later}`;
      if (row) addEdge(edges, place(at - 1, node.parent), place(at, number), boxWidth, kind, node.best);
      addNode(svg, node, place(at, number), boxWidth, kind);
    });
  });
  const button = byId("beam-all");
  button.hidden = steps.length <= Math.min(step, BEAM_ROWS);
  button.textContent = isWholeBeamShown ? "Show only what led here" : `Show all ${steps.length} positions`;
}

function addEdge(edges, [fromX, fromY], [toX, toY], width, kind, best) {
  const [start, end, half] = [fromY + BOX.height, toY, width / 2];
  const d = `M${fromX + half} ${start}C${fromX + half} ${end - 8} ${toX + half} ${start + 8} ${toX + half} ${end}`;
  const edge = add(edges, "path", { d, class: kind });
  if (!best) edges.prepend(edge); // below the best
}

function describeNode(node) {
  if (hasEnded(node)) return `ends with score ${node.score.toFixed(3)}`;
  const probability = `probability ${node.probability.toFixed(DIGITS)}`;
  return `${probability}, log-probability so far ${node.log_probability.toFixed(3)}`;
}

function addNode(svg, node, [x, y], width, kind) {
  const group = add(svg, "g", { class: `node ${kind}` });
  const strength = 0.35 * (node.probability || 0);
  const { height } = BOX;
  add(group, "rect", { x, y, width, height, rx: 5, "fill-opacity": strength.toFixed(3) });
  add(group, "text", { x: x + 6, y: y + height / 2 }, cut(node.label, width - 16 - textWidth(nodeNumber(node), 11)));
  const end = { x: x + width - 5, y: y + height / 2, "text-anchor": "end", class: "number" };
  add(group, "text", end, nodeNumber(node));
  add(group, "title", {}, `${isolate(node.label)}: ${describeNode(node)}`);
}
