// ---- record: what the model computes for a source and a target, as tfm.visualize.page describes an observation

const MAX_CHOICES = 8; // most probable tokens of each prediction
const LEVELS = 65535; // largest integer of a packed number
const KIND_TRACKS = { encoder: ["source", "source"], decoder: ["predicted", "read"], cross: ["predicted", "source"] };

/** Numbers as 16-bit integers in base64, as numbers.js unpacks them. */
function pack(numbers, shape) {
  const scale = numbers.reduce((a, b) => Math.max(a, b), 0);
  const levels = Uint8Array.from({ length: 2 * numbers.length }, (_, i) => {
    const level = Math.round((numbers[i >> 1] / (scale || 1)) * LEVELS);
    return i % 2 ? level >> 8 : level & 255;
  });
  let bytes = "";
  for (let i = 0; i < levels.length; i += 4096) bytes += String.fromCharCode(...levels.subarray(i, i + 4096));
  return { shape, scale, data: btoa(bytes) };
}

const multiply = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));

/** The mean of the heads of a layer: heads [query][key] -> [query][key]. */
const meanOfHeads = (heads) =>
  heads[0].map((row, i) => row.map((_, j) => heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length));

/** The rollout of the means of self-attention, see tfm.interpret.reductions. */
function rollOut(means) {
  const steps = [];
  for (const mean of means) {
    const step = mean.map((row, i) => row.map((x, j) => (x + (i === j ? 1 : 0)) / 2));
    steps.push(steps.length ? multiply(step, steps[steps.length - 1]) : step);
  }
  return steps;
}

/** The norms of the weighted values of a layer (Kobayashi et al. 2020): {norms [head][query][key], joint [query][key]}. */
function valueNorms(model, path, heads, memory) {
  const { key_value_heads: groups, value_features: V } = model.config;
  const { numbers, columns } = model.parameters[`${path}/output/kernel`];
  const transformed = memory.map(({ value }) =>
    heads.map((_, head) => {
      const group = Math.floor((head * groups) / heads.length);
      const row = new Float64Array(columns);
      for (let v = 0; v < V; v++)
        for (let d = 0; d < columns; d++) row[d] += value[group * V + v] * numbers[(head * V + v) * columns + d];
      return row;
    }),
  );
  const products = transformed.map((rows) =>
    rows.map((a) => rows.map((b) => a.reduce((sum, x, d) => sum + x * b[d], 0))),
  );
  const norms = heads.map((rows, h) => rows.map((row) => row.map((weight, m) => weight * Math.sqrt(products[m][h][h]))));
  const joint = heads[0].map((row, query) =>
    row.map((_, m) => {
      let square = 0;
      heads.forEach((rows, h) =>
        heads.forEach((others, g) => (square += rows[query][m] * others[query][m] * products[m][h][g])),
      );
      return Math.sqrt(Math.max(square, 0));
    }),
  );
  return { norms, joint };
}

/** The example of the page for the ids of both sides, without the search. */
function recordExample(model, tokenizer, title, source, predicted, off) {
  const layers = {}; // {path: {weights [query][head][key], memory}}
  const record = (path, weights, memory) => {
    layers[path] = { weights: [...(layers[path]?.weights || []), weights], memory };
  };
  const run = { off, record };
  const read = [BOS_ID, ...predicted.slice(0, -1)];
  let state = model.begin(source, run);
  const predictions = read.map((token, i) => {
    const [logits, next] = model.step(state, token, run);
    state = next;
    const probabilities = softmax(logits);
    const choices = largestIds(probabilities, MAX_CHOICES).map((id) => [tokenizer.label(id), probabilities[id]]);
    return { probability: probabilities[predicted[i]], choices };
  });
  const lengths = { source: source.length, read: read.length, predicted: predicted.length };
  const tracks = {
    source: tokenizer.track("source piece", source),
    read: tokenizer.track("target piece read", read),
    predicted: tokenizer.track("target piece predicted", predicted),
  };
  const attention = {};
  let encoderRollout;
  for (const [kind, [queries, keys]] of Object.entries(KIND_TRACKS)) {
    const stack = kind === "encoder" ? "encoder" : "decoder";
    const name = kind === "cross" ? "cross_attention" : "self_attention";
    const paths = Object.keys(layers).filter((path) => path.startsWith(stack) && path.endsWith(name));
    const size = [lengths[queries], lengths[keys]];
    // Earlier positions of the decoder do not see later keys.
    const padded = (row) => Float64Array.from({ length: size[1] }, (_, i) => row[i] || 0);
    const weights = paths.map((path) =>
      layers[path].weights[0].map((_, head) => layers[path].weights.map((heads) => padded(heads[head]))),
    );
    const norms = paths.map((path, i) => valueNorms(model, path, weights[i], layers[path].memory));
    const means = weights.map(meanOfHeads);
    const rollout = kind === "cross" ? means.map((mean) => multiply(mean, encoderRollout)) : rollOut(means);
    if (kind === "encoder") encoderRollout = rollout[rollout.length - 1];
    const packed = (nested, ...before) => pack(flatten(nested), [paths.length, ...before, ...size]);
    const { heads } = model.config;
    attention[kind] = {
      queries,
      keys,
      weights: packed(weights, heads),
      norms: packed(norms.map((layer) => layer.norms), heads),
      joint_norms: packed(norms.map((layer) => layer.joint)),
      mean: packed(means),
      rollout: packed(rollout),
    };
  }
  return { title, result: null, tracks, attention, predictions, beam: null, made: "" };
}

/** The numbers of nested arrays, in order. */
const flatten = (nested) => (typeof nested[0] === "number" ? Array.from(nested) : nested.flatMap(flatten));

/** The beam as the page draws it, see tfm.interpret.beam. */
function describeBeam({ finished, steps }, tokenizer, maxTokens) {
  const best = finished[0].ids.join();
  const isBest = (ids) => `${best},`.startsWith(`${ids.join()},`);
  const described = steps.map(({ live, ended }) =>
    [...live, ...ended].map(({ ids, score, gain, parent }) => ({
      label: tokenizer.label(ids[ids.length - 1]),
      log_probability: gain === undefined ? null : score,
      probability: gain === undefined ? null : Math.exp(gain),
      score: gain === undefined ? score : null,
      parent,
      best: isBest(ids),
    })),
  );
  return {
    steps: described.slice(0, maxTokens),
    finished: finished.map(({ ids, score }) => [ids.map((id) => tokenizer.label(id)), score]),
  };
}
