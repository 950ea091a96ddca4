// ---- matrix

/** A cell for each query and key, darker for larger numbers. */
function drawMatrix(parent, matrix, name) {
  const width = widthOf(parent);
  const left = Math.min(width * 0.34, longestOf(matrix.queries) + 22);
  const cell = Math.max(7, Math.min(26, (width - left - 12) / matrix.keys.length));
  const below = Math.min(150, longestOf(matrix.keys) * 0.87 + 12); // labels are turned by 60 degrees
  const size = cell < 16 ? 11 : 13; // of the labels
  const area = [cell * matrix.keys.length, cell * matrix.queries.length];
  const full = Math.max(width, left + area[0] + 4);
  const height = area[1] + below + ROW + 16;
  const svg = add(parent, "svg", {
    class: size < 13 ? "small" : "",
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
      const pair = `${isolate(matrix.queries[i])} → ${isolate(matrix.keys[j])}`;
      rect.dataset.told = `${pair}: ${shown(number, matrix.signed)}`;
    }),
  );
  add(cells, "rect", { width: area[0], height: area[1], class: "frame" });
  const mark = add(cells, "rect", { class: "mark" });
  const every = Math.ceil(13 / cell); // labels that touch are left out
  matrix.queries.forEach((label, i) => {
    if (i % every) return;
    const place = { x: left - 6, y: ROW + cell * (i + 0.5), "text-anchor": "end" };
    add(svg, "text", place, cut(label, left - 10, size));
  });
  matrix.keys.forEach((label, j) => {
    if (j % every) return;
    const place = `translate(${left + cell * (j + 0.5)} ${ROW + area[1] + 6}) rotate(-60)`;
    add(svg, "text", { transform: place, "text-anchor": "end" }, cut(label, below * 1.1, size));
  });
  svg.addEventListener("pointerover", (event) => {
    if (event.target.dataset.told) byId("reading").textContent = event.target.dataset.told;
  });
  return () => {
    const { side, index } = inMatrix(matrix, activeToken());
    mark.style.display = index < 0 ? "none" : "";
    const row = { x: 0, y: cell * index, width: area[0], height: cell };
    const column = { x: cell * index, y: 0, width: cell, height: area[1] };
    for (const [name, value] of Object.entries(side === "queries" ? row : column)) mark.setAttribute(name, value);
  };
}
