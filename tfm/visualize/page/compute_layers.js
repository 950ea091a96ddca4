// ---- layers: the Transformer of tfm.models.transformer, one position after the other
//
// A row is the Float64Array of the features of one position. `run` is what differs between two computations with the
// same parameters: {off: names of the parts that are turned off, record: function that gets the attention, or null}.

const MAX_TIMESCALE = 10000;
const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  swish: (x) => x / (1 + Math.exp(-x)),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
};

/** The name of a part that can be turned off. The index is null for a sublayer, see tfm.interpret.switches. */
const partName = (point, index) => `${point} ${index}`;

function softmax(numbers) {
  const largest = numbers.reduce((a, b) => Math.max(a, b));
  const exponentials = numbers.map((x) => Math.exp(x - largest));
  const total = exponentials.reduce((a, b) => a + b);
  return exponentials.map((x) => x / total);
}

class Transformer {
  /**
   * @param config fields of the model's config.
   * @param parameters {name: {numbers: Float32Array, columns}}. A kernel has a row for each feature of its input.
   */
  constructor(config, parameters) {
    [this.config, this.parameters] = [config, parameters];
    this.activation = ACTIVATIONS[config.activation];
  }

  project(name, row) {
    const { numbers, columns } = this.parameters[`${name}/kernel`];
    const bias = this.parameters[`${name}/bias`];
    const output = bias ? Float64Array.from(bias.numbers) : new Float64Array(columns);
    let i = 0;
    for (; i + 4 <= row.length; i += 4) {
      // Four features at once take half of the time, because the outputs are loaded and stored less often.
      const [x, y, z, w] = [row[i], row[i + 1], row[i + 2], row[i + 3]];
      for (let j = 0, at = i * columns; j < columns; j++, at++)
        output[j] +=
          x * numbers[at] + y * numbers[at + columns] + z * numbers[at + 2 * columns] + w * numbers[at + 3 * columns];
    }
    for (; i < row.length; i++) for (let j = 0; j < columns; j++) output[j] += row[i] * numbers[i * columns + j];
    return output;
  }

  norm(name, row) {
    const { norm, layer_norm_epsilon: epsilon } = this.config;
    const mean = norm === "layer_norm" ? row.reduce((a, b) => a + b) / row.length : 0;
    const square = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
    const factor = 1 / Math.sqrt(square + epsilon);
    const scale = this.parameters[`${name}/scale`].numbers;
    const bias = this.parameters[`${name}/bias`];
    return row.map((x, i) => (x - mean) * factor * scale[i] + (bias ? bias.numbers[i] : 0));
  }

  /** The input of a stack: the embedding of a token and its position. */
  embed(stack, token, position, run) {
    const { d_model: width, tied_embeddings: tied } = this.config;
    const name = stack === "encoder" && tied !== "three" ? "source_embedding" : "embedding";
    const { numbers } = this.parameters[`${name}/table`];
    const factor = this.config.scale_embedding ? Math.sqrt(width) : 1;
    const isOn = !run.off.has(partName(`${stack}.embeddings`, position));
    const added = this.encodePosition(stack, position);
    const row = Float64Array.from({ length: width }, (_, i) => (isOn ? factor * numbers[token * width + i] : 0) + added(i));
    return this.config.embedding_norm ? this.norm(`${stack}_embedding_norm`, row) : row;
  }

  /** The vector that is added to an embedding, as a function of the feature. */
  encodePosition(stack, position) {
    const { positions, d_model: width, first_position: first } = this.config;
    const half = width / 2;
    if (positions === "learned") {
      const { numbers } = this.parameters[`${stack}_positions/table`];
      return (i) => numbers[position * width + i];
    }
    if (positions === "concatenated") {
      const angle = (i) => (position + first) * MAX_TIMESCALE ** -(i / Math.max(half - 1, 1));
      return (i) => (i < half ? Math.sin(angle(i)) : Math.cos(angle(i - half)));
    }
    if (!positions.startsWith("interleaved")) return () => 0;
    const angle = (i) => (position + first) * MAX_TIMESCALE ** -((i - (i % 2)) / width);
    return (i) => (i % 2 ? Math.cos(angle(i)) : Math.sin(angle(i)));
  }

  /** Turns each pair of features of each head by an angle that is proportional to the position. */
  rotate(row, position) {
    const { positions, key_features: features } = this.config;
    if (!positions.endsWith("rotary")) return row;
    const rotated = new Float64Array(row.length);
    for (let i = 0; i < row.length; i += 2) {
      const angle = position * MAX_TIMESCALE ** -((i % features) / features);
      const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
      rotated[i] = row[i] * cosine - row[i + 1] * sine;
      rotated[i + 1] = row[i] * sine + row[i + 1] * cosine;
    }
    return rotated;
  }

  /** What later positions remember of a row: its key and its value in all heads. */
  remember(path, row, position) {
    const key = this.project(`${path}/key`, row);
    const isCross = path.endsWith("cross_attention");
    return { key: isCross ? key : this.rotate(key, position), value: this.project(`${path}/value`, row) };
  }

  /** The attention of a row to a list of what `remember` returns. */
  attend(path, row, position, memory, run) {
    const { heads, key_value_heads: groups, key_features: K, value_features: V } = this.config;
    const isCross = path.endsWith("cross_attention");
    const projected = this.project(`${path}/query`, row);
    const query = isCross ? projected : this.rotate(projected, position);
    const scale = this.config.scale_attention ? K ** -0.5 : 1;
    const outputs = new Float64Array(heads * V);
    const weights = [];
    for (let head = 0; head < heads; head++) {
      const group = Math.floor((head * groups) / heads);
      const logits = memory.map(({ key }) => {
        let sum = 0;
        for (let k = 0; k < K; k++) sum += query[head * K + k] * key[group * K + k];
        return sum * scale;
      });
      const ofHead = softmax(logits);
      weights.push(ofHead);
      if (run.off.has(partName(`${path.replaceAll("/", ".")}.head_outputs`, head))) continue;
      memory.forEach(({ value }, m) => {
        for (let v = 0; v < V; v++) outputs[head * V + v] += ofHead[m] * value[group * V + v];
      });
    }
    if (run.record) run.record(path, weights, memory);
    return this.project(`${path}/output`, outputs);
  }

  feedForward(path, row) {
    const hidden = this.project(`${path}/hidden`, row).map(this.activation);
    const gate = this.config.gated ? this.project(`${path}/gate`, row) : null;
    return this.project(`${path}/output`, gate ? hidden.map((x, i) => x * gate[i]) : hidden);
  }

  /** The residual connection around a sublayer, a function of rows. `alpha` is 1 without DeepNorm. */
  residual(path, rows, alpha, run, sublayer) {
    const order = this.config.norm_order;
    const isOn = !run.off.has(partName(`${path.replaceAll("/", ".")}_residual.sublayer_output`, null));
    const norm = (row) => this.norm(`${path}_residual/norm`, row);
    let outputs = sublayer(order === "pre" ? rows.map(norm) : rows);
    if (!isOn) outputs = outputs.map((row) => row.map(() => 0));
    if (order === "norm_then_add") outputs = outputs.map(norm);
    const sums = rows.map((row, i) => row.map((x, j) => alpha * x + outputs[i][j]));
    return order === "post" ? sums.map(norm) : sums;
  }

  finish(stack, row) {
    return this.config.norm_order === "post" ? row : this.norm(`${stack}/norm`, row);
  }

  /** The output of the encoder for source tokens, as rows. */
  encode(tokens, run) {
    const alpha = this.config.encoder_alpha;
    let rows = tokens.map((token, i) => this.embed("encoder", token, i, run));
    for (let layer = 0; layer < this.config.encoder_layers; layer++) {
      const path = `encoder/layers_${layer}`;
      const name = `${path}/self_attention`;
      rows = this.residual(name, rows, alpha, run, (inputs) => {
        const memory = inputs.map((row, i) => this.remember(name, row, i));
        return inputs.map((row, i) => this.attend(name, row, i, memory, run));
      });
      const forward = (inputs) => inputs.map((row) => this.feedForward(`${path}/feed_forward`, row));
      rows = this.residual(`${path}/feed_forward`, rows, alpha, run, forward);
    }
    return rows.map((row) => this.finish("encoder", row));
  }

  /** The state of the decoder before its first token: what its layers remember of the source and of the target. */
  begin(tokens, run) {
    const rows = this.encode(tokens, run);
    const layers = Array.from({ length: this.config.decoder_layers }, (_, layer) => ({
      source: rows.map((row, i) => this.remember(`decoder/layers_${layer}/cross_attention`, row, i)),
      target: [],
    }));
    return { position: 0, layers };
  }

  /** Reads one more token: [logits of the next token, new state]. The old state stays valid. */
  step(state, token, run) {
    const alpha = this.config.decoder_alpha;
    const { position } = state;
    let rows = [this.embed("decoder", token, position, run)];
    const layers = state.layers.map(({ source, target }, layer) => {
      const path = `decoder/layers_${layer}`;
      const [own, cross] = [`${path}/self_attention`, `${path}/cross_attention`];
      let longer;
      rows = this.residual(own, rows, alpha, run, ([row]) => {
        longer = [...target, this.remember(own, row, position)];
        return [this.attend(own, row, position, longer, run)];
      });
      rows = this.residual(cross, rows, alpha, run, ([row]) => [this.attend(cross, row, position, source, run)]);
      const forward = ([row]) => [this.feedForward(`${path}/feed_forward`, row)];
      rows = this.residual(`${path}/feed_forward`, rows, alpha, run, forward);
      return { source, target: longer };
    });
    return [this.logits(this.finish("decoder", rows[0])), { position: position + 1, layers }];
  }

  logits(row) {
    const name = this.config.tied_embeddings === "none" ? "embedding/output" : "embedding/table";
    const { numbers } = this.parameters[name];
    const bias = this.parameters["embedding/bias"];
    const width = row.length;
    const logits = bias ? Float64Array.from(bias.numbers) : new Float64Array(numbers.length / width);
    let i = 0;
    for (; i + 4 <= logits.length; i += 4) {
      // Four logits at once take half of the time, because they share the features.
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let j = 0, at = i * width; j < width; j++, at++) {
        const x = row[j];
        a += x * numbers[at];
        b += x * numbers[at + width];
        c += x * numbers[at + 2 * width];
        d += x * numbers[at + 3 * width];
      }
      logits[i] += a;
      logits[i + 1] += b;
      logits[i + 2] += c;
      logits[i + 3] += d;
    }
    for (; i < logits.length; i++) for (let j = 0; j < width; j++) logits[i] += row[j] * numbers[i * width + j];
    return logits;
  }
}
