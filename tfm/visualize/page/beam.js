// ---- beam

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
