"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const KINDS = [...new Set(data.examples.flatMap((example) => Object.keys(example.attention)))];
// Other kinds are self-attention.
const TITLES = { cross: "Cross-attention", memory: "Attention of the hops to the sentences" };
const HINTS = {
  "source source":
    "Look for tokens that find what belongs to them: a pronoun that looks at its noun, an adjective at its word.",
  "predicted read":
    "Look for what the next token depends on: the last token, the subject, an earlier copy of the same words.",
  "predicted source":
    "Look for the source tokens with the strongest colour: they are often what the model translates next.",
  "question sentences":
    "Look for the sentence that each hop, a layer here, needs: the first often finds the thing, the next who has it.",
  "patches patches":
    "Look for the strokes that decide: the chosen patch looks most at the patches with the strongest colour. Many heads look at the background.",
  "places places": "Look for the extent of an object: its places look at each other.",
  "predicted places": "Look for the edges of the box: they decide what an object query finds, and how large it is.",
};
const SIDES = ["queries", "keys"];
const UNITS = { texts: "words", labels: "pieces" }; // as the data call them, and the page
const DRAWINGS = ["lines", "matrix"];
const IS_TOUCHED = window.matchMedia("(pointer: coarse)").matches; // by a finger, which needs larger targets
const ROW = IS_TOUCHED ? 34 : 26; // pixels of a token
const BOX = { left: 28, gap: 14, down: 46, least: 98, most: 180, height: 28 }; // of a hypothesis of the beam
const BEAM_ROWS = 8; // drawn until all are asked for
const NARROW = 480;
const LEAST_LINE = 60; // pixels between the labels of queries and keys
const LEAST_HEAD = IS_TOUCHED ? 44 : 28; // pixels of the picture of a head
const ALL_HEADS = 800; // pixels, the height that the pictures of all heads should have at most
const PHONE = 700; // pixels; narrower windows begin with folded controls
const LEAST_VISIBLE = 0.004; // of the largest number: thinner lines and paler cells are left out
const LEAST_FAINT = 0.05; // of the largest number: thinner lines of tokens that are not active are left out
const STRONGEST = 5; // tokens named in the reading
const DIGITS = 4;

const view = {
  example: 0,
  other: -1,
  kind: "",
  layer: -1, // negative numbers count from the last
  head: "mean",
  measure: "weights",
  unit: "texts",
  drawing: "lines",
  scale: "all",
  step: 0, // of the queries, from 1; 0 is the default
};
// The layer and the head that were chosen last. The view shows others while its kind of attention lacks them.
const wanted = { layer: view.layer, head: view.head };
// The token under the mouse or with the focus: {side: "queries" or "keys", index in the first example}.
let pointed = null;

const exampleNow = () => data.examples[view.example];
const mapNow = () => exampleNow().attention[view.kind];

/** The track whose elements the steps count: the track of the queries, otherwise of the predictions. */
const trackOf = (example) =>
  example.tracks[mapNow() ? mapNow().queries : "predicted"] || { labels: [""], words: [0] };
const steppedTrack = () => trackOf(exampleNow());

const looksAtImage = () => Boolean(mapNow() && exampleNow().tracks[mapNow().keys].grid);

/**
 * The step, from 1. The default of an image is the class token, or the surest object query. The default of a text
 * is the first token that differs from another example with the same beginning, such as a pronoun, otherwise the
 * middle. A model that only reads does not choose the first difference, so the default is the next.
 */
function stepNow() {
  const { labels } = steppedTrack();
  if (view.step || looksAtImage()) return view.step || 1;
  const other = data.examples.find((example) => example !== exampleNow());
  const differs = (label, i) => label !== trackOf(other).labels[i];
  const first = other ? labels.findIndex(differs) : -1;
  if (first < 1) return Math.ceil(labels.length / 2);
  const next = exampleNow().tracks.source ? -1 : labels.findIndex((label, i) => i > first && differs(label, i));
  return Math.max(first, next) + 1;
}

/** The query of the step, which is a word or a piece. */
const activeQuery = () => (view.unit === "texts" ? steppedTrack().words[stepNow() - 1] : stepNow() - 1);

/** The token whose lines are drawn: the one that is pointed at, else the query of the step. */
const activeToken = () => pointed || { side: "queries", index: activeQuery() };
