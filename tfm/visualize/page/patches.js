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
