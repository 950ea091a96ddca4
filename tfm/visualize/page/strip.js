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
    const text = add(strip, "div", { dir: directionOf(matrix[queries || keys]) });
    if (queries) makeToolbar(text);
    return matrix[queries || keys].map((label, index) => {
      const element = add(text, queries ? "button" : "span", { dir: "auto" }, label);
      if (isUnknown(matrix.tracks[queries ? "queries" : "keys"], index)) {
        element.classList.add("unknown");
        element.title = "not in the vocabulary";
      }
      if (queries) {
        element.type = "button";
        element.addEventListener("click", () => change({ step: stepOf(index) }));
      }
      return { element, queries, keys, index };
    });
  });
  return () => {
    const query = pointed && pointed.side === "queries" ? pointed.index : activeQuery();
    for (const { element, queries, keys, index } of tokens) {
      if (queries) {
        element.setAttribute("aria-pressed", String(index === query));
        element.tabIndex = index === activeQuery() ? 0 : -1;
      }
      const share = keys ? Math.min(1, (matrix.rows[query] || [])[index] / matrix.largest || 0) : 0;
      element.style.background = `color-mix(in srgb, var(--first) ${Math.round(50 * share)}%, transparent)`;
    }
  };
}

/** Whether a word or a piece of a track contains what the vocabulary lacks, as the server of tfm explore says. */
function isUnknown(track, index) {
  const parts = exampleNow().live?.unknown || [];
  if (!parts.length || track === exampleNow().tracks.predicted) return false;
  const text = track.texts[view.unit === "texts" ? index : track.words[index]] || "";
  const words = text.split(/\s+/);
  return text === "<unk>" || parts.some((part) => words.includes(part) || (part.length === 1 && text.includes(part)));
}

/** Makes the queries one stop of the Tab key, between which the arrow keys move. */
function makeToolbar(text) {
  text.setAttribute("role", "toolbar");
  text.setAttribute("aria-label", "Queries: arrow keys move, Enter selects");
  text.addEventListener("keydown", (event) => {
    const forward = getComputedStyle(text).direction === "rtl" ? -1 : 1;
    const move = { ArrowLeft: -forward, ArrowRight: forward, ArrowUp: -1, ArrowDown: 1 }[event.key];
    const buttons = [...text.children];
    const ends = { Home: buttons[0], End: buttons[buttons.length - 1] };
    const next = move ? buttons[buttons.indexOf(event.target) + move] : ends[event.key];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}
