// ---- search: beam search and greedy search, as in tfm.search

/** log(sum(exp(logits))). */
function logTotal(logits) {
  let largest = -Infinity;
  for (const x of logits) largest = Math.max(largest, x);
  let sum = 0;
  for (const x of logits) sum += Math.exp(x - largest);
  return largest + Math.log(sum);
}

/** The ids of the largest numbers, the largest first. Of equal numbers, the lowest id comes first. */
function largestIds(numbers, count, isAllowed = () => true) {
  const ids = [];
  for (let id = 0; id < numbers.length; id++) {
    if (ids.length === count && numbers[id] <= numbers[ids[count - 1]]) continue;
    if (!isAllowed(id)) continue;
    let place = ids.length;
    while (place && numbers[ids[place - 1]] < numbers[id]) place--;
    ids.splice(place, 0, id);
    if (ids.length > count) ids.pop();
  }
  return ids;
}

const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;
const byScore = (a, b) => b.score - a.score; // sorts are stable

/**
 * The beam search of tfm.search.beam.
 *
 * @param options {beam_size, length_penalty, min_length} of the run's decoding.
 * @param maxLength the largest number of tokens, EOS included.
 * @returns {finished: hypotheses {ids, score}, best first; steps: {live, ended} of each step}. A live hypothesis has
 *   `parent`, its place among the live hypotheses of the step before, and `gain`, the logarithm of its last probability.
 */
function beamSearch(model, source, options, maxLength, run) {
  const { beam_size: width, length_penalty: alpha } = options;
  let live = [{ ids: [], score: 0, state: model.begin(source, run) }];
  let finished = [];
  const steps = [];
  for (let length = 1; live.length; length++) {
    const mustEnd = length >= maxLength;
    const mayEnd = mustEnd || length >= options.min_length;
    const ended = [];
    const extensions = [];
    live.forEach(({ ids, score, state }, parent) => {
      const [logits, next] = model.step(state, ids.length ? ids[ids.length - 1] : BOS_ID, run);
      const total = logTotal(logits);
      const end = (score + logits[EOS_ID] - total) / lengthPenalty(length, alpha);
      if (mayEnd) ended.push({ ids: [...ids, EOS_ID], score: end, parent });
      for (const id of largestIds(logits, width + 1, (id) => id > EOS_ID)) {
        const gain = logits[id] - total;
        extensions.push({ ids: [...ids, id], score: score + gain, gain, parent, state: next });
      }
    });
    finished = [...finished, ...ended].sort(byScore).slice(0, width);
    const worst = finished.length < width ? -Infinity : finished[width - 1].score;
    const mildest = Math.max(lengthPenalty(length + 1, alpha), lengthPenalty(maxLength, alpha));
    live = extensions
      .sort(byScore)
      .slice(0, width)
      .filter(({ score }) => score / mildest > worst && !mustEnd);
    steps.push({ live, ended: finished.filter(({ ids }) => ids.length === length) });
  }
  return { finished, steps };
}

/** The greedy search of tfm.search.greedy: the ids of the output. */
function greedySearch(model, source, options, maxLength, run) {
  const ids = [];
  let state = model.begin(source, run);
  while (ids[ids.length - 1] !== EOS_ID) {
    const [logits, next] = model.step(state, ids.length ? ids[ids.length - 1] : BOS_ID, run);
    state = next;
    const length = ids.length + 1;
    const isAllowed = (id) => id > EOS_ID || (id === EOS_ID && length >= options.min_length);
    ids.push(length >= maxLength ? EOS_ID : largestIds(logits, 1, isAllowed)[0]);
  }
  return ids;
}
