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
