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
