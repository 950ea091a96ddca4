// ---- answers: the requests of live.js, as tfm.visualize.live answers them for tfm explore

const MAX_NAMED_PARTS = 3; // in the title of an example

/** Tokens of two texts that correspond, see tfm.interpret.words: [[i, j], ...]. */
function alignTokens(first, second) {
  const pairs = [];
  const addPairs = (i, iEnd, j, jEnd) => {
    if (iEnd - i === jEnd - j) for (let k = 0; k < iEnd - i; k++) pairs.push([i + k, j + k]);
  };
  const align = (i, iEnd, j, jEnd) => {
    const [at, other, size] = longestMatch(first, second, i, iEnd, j, jEnd);
    if (!size) return addPairs(i, iEnd, j, jEnd);
    align(i, at, j, other);
    addPairs(at, at + size, other, other + size);
    align(at + size, iEnd, other + size, jEnd);
  };
  align(0, first.length, 0, second.length);
  return pairs;
}

/** The longest sequence of equal tokens in parts of two texts, of several the first: [start, start, size]. */
function longestMatch(first, second, firstStart, firstEnd, secondStart, secondEnd) {
  let best = [firstStart, secondStart, 0];
  let sizes = new Map(); // of the matches that end at the token before, by the place in the second text
  for (let i = firstStart; i < firstEnd; i++) {
    const longer = new Map();
    for (let j = secondStart; j < secondEnd; j++) {
      if (first[i] !== second[j]) continue;
      const size = (sizes.get(j - 1) || 0) + 1;
      longer.set(j, size);
      if (size > best[2]) best = [i - size + 1, j - size + 1, size];
    }
    sizes = longer;
  }
  return best;
}

function alignTracks(first, second) {
  const pairs = {};
  for (const name of Object.keys(first))
    for (const unit of ["labels", "texts"])
      pairs[`${name} ${unit}`] = alignTokens(first[name][unit], second[name][unit]);
  return pairs;
}

/** Source code of the edits that do the same as parts that are off, see tfm.interpret.switches.as_python. */
function editsInPython(parts, off) {
  const points = new Map();
  for (const [point, index] of off) points.set(point, [...(points.get(point) || []), index]);
  const lines = [...points].sort(([a], [b]) => (a < b ? -1 : 1)).map(([point, indices]) => {
    const isHead = Object.values(parts.heads).some((names) => names.includes(point));
    if (indices[0] === null) return `    "${point}": interpret.zero,`;
    const list = indices.sort((a, b) => a - b).join(", ");
    const name = isHead ? "zero_head" : "zero_position";
    return `    "${point}": interpret.${name}(${indices.length > 1 ? `[${list}]` : list}),`;
  });
  return ["{", ...lines, "}"].join("\n");
}

class MessageError extends Error {} // the page shows its text

/** The model of the page, which answers the requests that tfm explore answers otherwise. */
class Answers {
  /**
   * @param settings {decoding: fields of the config, maxTokens, python: source code with EXAMPLE and EDITS}.
   * @param parts {heads, sublayers, tracks} with switches, see live.js.
   */
  constructor(model, tokenizer, settings, parts) {
    Object.assign(this, { model, tokenizer, settings, parts });
    this.tracks = []; // of each example, by its id
    this.originals = new Map(); // {text: example with everything on}
  }

  answer({ text, off, known }) {
    const original = this.observe(text, []);
    let example = original;
    const about = { text, off, unknown: this.tokenizer.findUnknown(text) };
    if (off.length) {
      const names = off.map((part) => this.nameOf(part, original));
      const shown = names.length <= MAX_NAMED_PARTS ? names.join(", ") : `${names.length} parts`;
      example = this.observe(text, off);
      example.title += ` Without ${shown}.`;
      about.changes = this.changes(text, off, original);
      about.caption = "Probability of each token of the original, given the tokens before it";
      about.python = this.settings.python
        .replace("EXAMPLE", () => JSON.stringify(text))
        .replace("EDITS", () => editsInPython(this.parts, off));
    }
    about.id = this.tracks.push(example.tracks) - 1;
    const alignments = Object.fromEntries(known.map((id) => [id, alignTracks(this.tracks[id], example.tracks)]));
    const { predictedIds, ...shown } = example;
    return { example: { ...shown, live: about }, alignments, notes: this.notes(about.unknown) };
  }

  observe(text, off) {
    if (!off.length && this.originals.has(text)) return this.originals.get(text);
    const { decoding, maxTokens } = this.settings;
    const source = this.encode(text);
    const names = new Set(off.map(([point, index]) => partName(point, index)));
    const run = { off: names, record: null };
    const maxLength = source.length + decoding.max_extra_tokens;
    let [target, beam] = [null, null];
    if (decoding.beam_size === 1) target = greedySearch(this.model, source, decoding, maxLength, run);
    else {
      beam = beamSearch(this.model, source, decoding, maxLength, run);
      target = beam.finished[0].ids;
    }
    const predictedIds = target.slice(0, maxTokens);
    const example = recordExample(this.model, this.tokenizer, text, source, predictedIds, names);
    Object.assign(example, {
      result: this.tokenizer.decode(target),
      beam: beam && describeBeam(beam, this.tokenizer, maxTokens),
      predictedIds,
    });
    if (!off.length) this.originals.set(text, example);
    return example;
  }

  /** The ids of a source, with EOS. */
  encode(text) {
    const line = strip(text).replace(/[\r\n]+/g, " ");
    if (!line) throw new MessageError("Expected a sentence to translate and draw, got an empty one.");
    const ids = [...this.tokenizer.encode(line), EOS_ID];
    const { maxTokens } = this.settings;
    if (ids.length > maxTokens)
      throw new MessageError(`Expected an example of at most ${maxTokens} tokens, got ${ids.length}. Shorten it.`);
    return ids;
  }

  /** [label, probability with everything on, probability without some parts] of each token of the original. */
  changes(text, off, original) {
    const names = new Set(off.map(([point, index]) => partName(point, index)));
    const { model, tokenizer } = this;
    const after = recordExample(model, tokenizer, text, this.encode(text), original.predictedIds, names);
    return original.tracks.predicted.labels.map((label, i) => [
      label,
      original.predictions[i].probability,
      after.predictions[i].probability,
    ]);
  }

  /** The name of a part in words. */
  nameOf([point, index], original) {
    if (index === null) return this.parts.sublayers[point];
    for (const [kind, points] of Object.entries(this.parts.heads))
      if (points.includes(point)) return `${kind} layer ${points.indexOf(point)}, head ${index}`;
    const [track] = Object.entries(this.parts.tracks).find(([, name]) => name === point);
    return `${track} token ${original.tracks[track].labels[index]}`;
  }

  /** Remarks about the words and characters that the vocabulary does not have. */
  notes(unknown) {
    if (!unknown.length) return [];
    const code = (character) => character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const names = unknown.map((part) => ([...part].length === 1 ? `'${part}' (U+${code(part)})` : `'${part}'`));
    const them = unknown.length === 1 ? "it" : "them";
    return [`The vocabulary lacks ${names.join(", ")}. Training has not seen ${them}.`];
  }
}
