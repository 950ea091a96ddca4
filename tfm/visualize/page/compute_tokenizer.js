// ---- tokenizer: the normalization and the byte-pair encoding of SentencePiece

const [PAD_ID, BOS_ID, EOS_ID] = [0, 1, 2];
const WORD_START = "\u2581"; // in place of a space
const [NORMAL, UNKNOWN, BYTE] = ["1", "2", "6"]; // kinds of pieces in a file of SentencePiece
const [FIRST_PRIVATE, LAST_PRIVATE] = [0xe000, 0xf8ff];
const LINE_END = "\u21b5"; // label of the end of a line within a piece
// Of Python's str.strip, which differs from String.trim in a few characters.
const BLANK = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const BLANK_ENDS = new RegExp(`^${BLANK}+|${BLANK}+$`, "g");
const utf8 = { encoder: new TextEncoder(), decoder: new TextDecoder("utf-8", { ignoreBOM: true }) };

const strip = (text) => text.replace(BLANK_ENDS, "");

/** The number of bytes of the character that begins with a byte of UTF-8. */
const characterBytes = (byte) => (byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4);

/**
 * Replacements of texts, from a double array trie. A unit of the array has a label in its lowest 8 bits, and the
 * offset to its children from bit 10 on. Bit 8 is set if a key ends there. A unit with bit 31 is the end of a key: its
 * other bits are the place of the replacement among the texts, which end in a zero.
 */
class Replacements {
  constructor(units, texts) {
    [this.units, this.texts] = [units, texts];
  }

  /** The longest key that the bytes begin with at `start`: its number of bytes, or 0, and its replacement. */
  find(bytes, start) {
    const { units } = this;
    const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let [length, place] = [0, 0];
    if (!units.length) return [0, ""];
    let at = offset(units[0]);
    for (let i = start; i < bytes.length; i++) {
      at ^= bytes[i];
      const unit = units[at];
      if (unit === undefined || (unit & 0x800000ff) !== bytes[i]) break;
      at ^= offset(unit);
      if (unit & 0x100) [length, place] = [i + 1 - start, units[at] & 0x7fffffff];
    }
    const text = this.texts.subarray(place, this.texts.indexOf(0, place));
    return [length, length ? utf8.decoder.decode(text) : ""];
  }
}

class Tokenizer {
  /**
   * @param description {pieces, kinds: a character for each piece, unknown: the text of an unknown piece, and two
   *   booleans of the normalization: dummyPrefix, removesBlanks}. Pieces that are merges are in the order of the merges.
   */
  constructor(description, replacements) {
    Object.assign(this, description, { replacements });
    this.ids = new Map(); // of the pieces that texts can have
    this.bytes = [];
    this.pieces.forEach((piece, id) => {
      if (this.kinds[id] === NORMAL) this.ids.set(piece, id);
      if (this.kinds[id] === BYTE) this.bytes[parseInt(piece.slice(1, -1), 16)] = id;
    });
    this.unknownId = this.kinds.indexOf(UNKNOWN);
  }

  normalize(text) {
    const bytes = utf8.encoder.encode(text);
    let normal = "";
    for (let at = 0; at < bytes.length; ) {
      let [length, part] = this.replacements.find(bytes, at);
      if (!length) {
        length = characterBytes(bytes[at]);
        part = utf8.decoder.decode(bytes.subarray(at, at + length));
      }
      normal += part;
      at += length;
    }
    if (this.removesBlanks) normal = normal.replace(/ +/g, " ").replace(/^ | $/g, "");
    if (!normal) return "";
    return `${this.dummyPrefix ? " " : ""}${normal}`.replaceAll(" ", WORD_START);
  }

  /** The ids of a text, without special ids. */
  encode(text) {
    // A word start in a text is no space. A character that the vocabulary lacks takes its place, and becomes its bytes.
    let standIn = "";
    if (this.bytes.length && text.includes(WORD_START)) {
      for (let code = FIRST_PRIVATE; code <= LAST_PRIVATE && !standIn; code++) {
        const character = String.fromCharCode(code);
        if (!text.includes(character) && !this.ids.has(character)) standIn = character;
      }
    }
    const ids = [];
    for (const symbol of this.merge(Array.from(this.normalize(standIn ? text.replaceAll(WORD_START, standIn) : text)))) {
      const id = this.ids.get(symbol);
      if (id !== undefined) ids.push(id);
      else if (this.bytes.length)
        for (const byte of utf8.encoder.encode(symbol === standIn ? WORD_START : symbol)) ids.push(this.bytes[byte]);
      else if (ids[ids.length - 1] !== this.unknownId) ids.push(this.unknownId); // of several, one remains
    }
    return ids;
  }

  /** Merges the pair of neighbours that is the first in the vocabulary, until no pair is in it. */
  merge(symbols) {
    const rank = (i) => this.ids.get(symbols[i] + symbols[i + 1]) ?? Infinity;
    const ranks = Array.from({ length: Math.max(0, symbols.length - 1) }, (_, i) => rank(i));
    for (;;) {
      let best = -1;
      let least = Infinity;
      for (let i = 0; i < ranks.length; i++) if (ranks[i] < least) [best, least] = [i, ranks[i]];
      if (best < 0) return symbols;
      symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
      ranks.splice(best, 1);
      if (best) ranks[best - 1] = rank(best - 1);
      if (best < ranks.length) ranks[best] = rank(best);
    }
  }

  /** The text of the ids before the first EOS, without blanks at its ends. */
  decode(ids) {
    const end = ids.indexOf(EOS_ID);
    const bytes = [];
    for (const id of end < 0 ? ids : ids.slice(0, end)) {
      if (this.kinds[id] === BYTE) bytes.push(this.bytes.indexOf(id));
      else if (this.kinds[id] === UNKNOWN) bytes.push(...utf8.encoder.encode(this.unknown));
      else if (this.kinds[id] === NORMAL) bytes.push(...utf8.encoder.encode(this.pieces[id].replaceAll(WORD_START, " ")));
    }
    return strip(utf8.decoder.decode(Uint8Array.from(bytes)));
  }

  label(id) {
    return this.pieces[id].replaceAll("\n", LINE_END);
  }

  /** The track of ids: labels, the number of the word of each, and the text of each word. */
  track(element, ids) {
    const labels = ids.map((id) => this.label(id));
    const isSeparate = (i) => ids[i] <= EOS_ID || [...labels[i]].every((c) => c === LINE_END) || labels[i] === "<unk>";
    const begins = (i) =>
      i === 0 ||
      (this.pieces[ids[i]].startsWith(WORD_START) && this.pieces[ids[i - 1]] !== WORD_START) ||
      isSeparate(i) ||
      isSeparate(i - 1);
    let word = -1;
    const words = ids.map((_, i) => (begins(i) ? ++word : word));
    const texts = Array.from({ length: word + 1 }, (_, number) => {
      const places = [...ids.keys()].filter((i) => words[i] === number);
      return this.decode(places.map((i) => ids[i])) || places.map((i) => labels[i]).join("");
    });
    return { element, labels, words, texts, picture: null, grid: null, boxes: null };
  }

  /**
   * The parts of a text that the vocabulary lacks, to mark them in the text: characters, then words, the most frequent
   * first. The unknown words that contain an unknown letter stand in its place, see tfm.data.tokenizers.unknown_text.
   */
  findUnknown(text) {
    const isUnknown = (part) => {
      const ids = this.encode(part);
      return ids.length ? ids.some((id) => this.kinds[id] !== NORMAL) : strip(part) !== "";
    };
    const characters = Array.from(text);
    const suspects = new Set(characters.filter(isUnknown));
    const allWords = text.split(new RegExp(`${BLANK}+`)).filter((word) => word);
    const words = allWords.filter((word) => [...word].some((c) => suspects.has(c)));
    // A vocabulary of whole words lacks most single letters.
    for (const word of words) if (!isUnknown(word)) for (const character of word) suspects.delete(character);
    const listed = byCount(characters.filter((c) => suspects.has(c))).filter((c) => this.encode(c).length);
    const otherWords = words.filter((word) => isUnknown(word) && ![...word].some((c) => suspects.has(c)));
    const unknownWords = allWords.filter(isUnknown);
    const isCasedLetter = (part) => [...part].length === 1 && part.toLowerCase() !== part.toUpperCase();
    const parts = [...listed, ...byCount(otherWords)].flatMap((part) =>
      isCasedLetter(part) ? unknownWords.filter((word) => word.includes(part)) : [part],
    );
    return [...new Set(parts)];
  }
}

/** The distinct texts, the most frequent first. */
function byCount(texts) {
  const counts = new Map();
  for (const text of texts) counts.set(text, (counts.get(text) || 0) + 1);
  return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
}
