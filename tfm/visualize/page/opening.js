// ---- what the page shows first

// The head that is worth seeing first: {example, kind, layer, head, reason}. Null without attention.
let opening = null;

/** The rows of one head of an example, of words or of pieces. */
function rowsOf(number, layer, head) {
  const { attention, tracks } = data.examples[number];
  const map = attention[view.kind];
  const rows = slice(map.weights, layer, head);
  return view.unit === "texts" ? mergeWords(rows, tracks[map.queries].words, tracks[map.keys].words) : rows;
}

const queryName = (number, query) => trackOf(data.examples[number])[view.unit][query];

/** The head with the largest number, as {layer, head}. */
function strongestHead(numberOf) {
  const [layers, heads] = mapNow().weights.shape;
  let strongest = { layer: 0, head: 0, number: -1 };
  for (let layer = 0; layer < layers; layer++)
    for (let head = 0; head < heads; head++) {
      const number = numberOf(layer, head);
      if (number > strongest.number) strongest = { layer, head, number };
    }
  return { layer: strongest.layer, head: strongest.head };
}

/**
 * An example whose attention can be compared with that of the example of the view, or -1. Texts can be compared if
 * at least half of the keys correspond. The same place in two pictures means nothing.
 */
function comparableExample() {
  if (looksAtImage()) return -1;
  const isComparable = (example, number) =>
    number !== view.example &&
    Boolean(example.attention[view.kind]) &&
    2 * correspondences(view.example, number).keys.length >= exampleNow().tracks[mapNow().keys][view.unit].length;
  if (view.other >= 0) return isComparable(data.examples[view.other], view.other) ? view.other : -1;
  return data.examples.findIndex(isComparable);
}

const quoted = (names) => [...new Set(names)].map((name) => `“${isolate(name)}”`).join(" and ");

/**
 * The head whose attention from the query of the view differs most between two examples: the sum of the absolute
 * differences over the keys that correspond. Of all queries, if this query corresponds to none.
 */
function mostDifferentHead(other) {
  const pairs = correspondences(view.example, other);
  const ofQuery = pairs.queries.filter(([i]) => i === activeQuery());
  const queries = ofQuery.length ? ofQuery : pairs.queries;
  const chosen = strongestHead((layer, head) => {
    const [first, second] = [view.example, other].map((number) => rowsOf(number, layer, head));
    let sum = 0;
    for (const [i, j] of queries) for (const [k, l] of pairs.keys) sum += Math.abs(first[i][k] - second[j][l]);
    return sum;
  });
  const names = ofQuery.flatMap(([i, j]) => [queryName(view.example, i), queryName(other, j)]);
  const from = names.length ? ` from ${quoted(names)}` : "";
  const examples = `examples ${view.example + 1} and ${other + 1}`;
  return { ...chosen, reason: `its attention${from} differs most between ${examples}.` };
}

/**
 * The head whose attention from the query of the view differs most from its attention from the other queries: the
 * divergence (Kullback and Leibler) of the row of this query from the mean of all rows. The row of a single query
 * is compared with equal weights.
 */
function mostDistinctiveHead() {
  const query = activeQuery();
  const chosen = strongestHead((layer, head) => {
    const rows = rowsOf(view.example, layer, head);
    const meanOf = (key) => rows.reduce((sum, row) => sum + row[key], 0) / rows.length;
    const expected = (key) => (rows.length > 1 ? meanOf(key) : 1 / rows[0].length);
    const terms = Array.from(rows[query] || [], (weight, key) => weight && weight * Math.log(weight / expected(key)));
    return terms.reduce((sum, term) => sum + term, 0);
  });
  const from = `its attention from ${quoted([queryName(view.example, query)])}`;
  const isAlone = steppedTrack()[view.unit].length === 1;
  const reason = isAlone ? "is the most concentrated." : "differs most from its attention from the other queries.";
  return { ...chosen, reason: `${from} ${reason}` };
}

/** Chooses the head, and the example to compare with, unless the address does. */
function chooseOpening(address) {
  if (!mapNow()) return;
  const other = comparableExample();
  const { layer, head, reason } = other >= 0 ? mostDifferentHead(other) : mostDistinctiveHead();
  opening = { example: view.example, kind: view.kind, layer, head, reason };
  if (!address.has("layer") && !address.has("head")) set({ layer, head });
  if (!address.size && window.innerWidth > PHONE) set({ other });
}

/** Why the page shows this head, or "" if the reader has chosen another one. */
function openingReason() {
  const isOpening = opening && ["example", "kind", "layer", "head"].every((name) => opening[name] === view[name]);
  const [layers, heads] = mapNow().weights.shape;
  if (!isOpening || layers * heads === 1) return "";
  return `Of all ${layers * heads} heads, this one is shown first because ${opening.reason}`;
}
