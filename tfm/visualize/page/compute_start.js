// ---- start: reads the model that the page contains, computes the first examples, and then starts the page

// Of Python's base64.b85encode, with a comma in place of "<".
const DIGITS_85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

/** The bytes of a text in base 85, of which five digits are four bytes. The last digits may be fewer. */
function decodeBase85(text) {
  const values = new Uint8Array(128);
  for (let i = 0; i < DIGITS_85.length; i++) values[DIGITS_85.charCodeAt(i)] = i;
  const bytes = new Uint8Array(4 * Math.ceil(text.length / 5));
  const view = new DataView(bytes.buffer);
  for (let i = 0, at = 0; i < text.length; i += 5, at += 4) {
    let number = 0;
    for (let k = i; k < i + 5; k++) number = 85 * number + (k < text.length ? values[text.charCodeAt(k)] : 84);
    view.setUint32(at, number);
  }
  return bytes.subarray(0, Math.floor((text.length * 4) / 5));
}

/** The bytes of a text in base 85 that gzip has compressed. */
async function decompress(text) {
  const bytes = decodeBase85(text);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Integers whose first bytes come first, then all second bytes, and so on, which compresses better. */
function joinPlanes(bytes) {
  const count = bytes.length / 4;
  const plane = (i) => bytes.subarray(i * count, (i + 1) * count);
  const [first, second, third, fourth] = [0, 1, 2, 3].map(plane);
  return Uint32Array.from(first, (byte, i) => byte | (second[i] << 8) | (third[i] << 16) | (fourth[i] << 24));
}

/** The numbers that tfm.export.page has written as multiples of a step: 0, -1, 1, -2, 2, ... */
const unfold = (integers, step) => Float32Array.from(integers, (x) => (x & 1 ? -(x >>> 1) - 1 : x >>> 1) * step);

/** See tfm.export.page for the parts of the bytes. */
function readModel(bytes) {
  const { byteOffset, buffer } = bytes;
  let at = 4;
  const take = (size) => bytes.subarray(at, (at += size));
  const header = JSON.parse(utf8.decoder.decode(take(new DataView(buffer, byteOffset).getUint32(0, true))));
  const numbers = unfold(joinPlanes(take(4 * header.parameterCount)), header.step);
  const units = joinPlanes(take(4 * header.unitCount));
  const parameters = {};
  let start = 0;
  for (const [name, rows, columns] of header.shapes) {
    parameters[name] = { numbers: numbers.subarray(start, start + rows * columns), columns };
    start += rows * columns;
  }
  const tokenizer = new Tokenizer(header.tokenizer, new Replacements(units, bytes.subarray(at)));
  return { model: new Transformer(header.model, parameters), tokenizer, settings: header.settings };
}

async function startPage() {
  const data = document.getElementById("data");
  const status = document.getElementById("live-status");
  status.textContent = "Loading the model …";
  const { title, texts, live } = JSON.parse(data.textContent);
  const { model, tokenizer, settings } = readModel(await decompress(document.getElementById("model").textContent));
  const answers = new Answers(model, tokenizer, settings, live);
  globalThis.inPage = {
    answers,
    /** Answers like the server of tfm explore. */
    async answer(request) {
      await new Promise((done) => setTimeout(done)); // so that the page shows that it computes
      try {
        return answers.answer(request);
      } catch (error) {
        if (error instanceof MessageError) return { error: error.message };
        throw error;
      }
    },
  };
  const examples = texts.map((text) => answers.answer({ text, off: [], known: [] }).example);
  const alignments = {};
  examples.forEach((first, i) =>
    examples.slice(i + 1).forEach((second, k) => {
      alignments[`${i},${i + 1 + k}`] = alignTracks(first.tracks, second.tracks);
    }),
  );
  const abouts = examples.map((example) => example.live);
  data.textContent = JSON.stringify({ title, examples, alignments, live: { ...live, examples: abouts } });
  status.textContent = "";
  const script = document.createElement("script");
  script.textContent = document.getElementById("script").textContent;
  document.body.append(script);
}

startPage().catch((error) => {
  document.getElementById("live-status").textContent = `This browser cannot compute the model: ${error.message}.`;
  throw error;
});
