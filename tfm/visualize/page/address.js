// ---- the address: names as the controls show them. Layers and heads count from 0, as in names of parameters.

const toIndex = (text) => (/^\d+$/.test(text) ? Number(text) : undefined);
const toNumber = (text) => (toIndex(text) === undefined ? undefined : toIndex(text) - 1);
const oneOf = (names) => (text) => (names.includes(text) ? text : undefined);

/** For each name in the address: the field of the view, the value of a text, and the text of a value. */
const ADDRESS = {
  example: ["example", toNumber, (value) => value + 1],
  compare: ["other", (text) => toNumber(text) ?? -1, (value) => value + 1 || "none"],
  attention: ["kind", oneOf(KINDS)],
  layer: ["layer", toIndex, (value) => (value < 0 ? "" : value)],
  head: ["head", (text) => toIndex(text) ?? oneOf(["mean", "rollout"])(text)],
  measure: ["measure", oneOf(["weights", "norms"])],
  unit: ["unit", (text) => Object.keys(UNITS).find((name) => UNITS[name] === text), (value) => UNITS[value]],
  drawing: ["drawing", oneOf(DRAWINGS)],
  scale: ["scale", oneOf(["all", "view"])],
  position: ["step", (text) => toIndex(text) ?? 0, (value) => value || ""],
};

function writeAddress() {
  if (location.protocol === "about:") return; // the frame of a notebook has no address
  const entries = Object.entries(ADDRESS)
    .map(([name, [field, , write]]) => [name, write ? write(view[field]) : view[field]])
    .filter(([, text]) => text !== "");
  history.replaceState(null, "", `#${new URLSearchParams(entries)}`);
}

const addressNow = () => new URLSearchParams(location.hash.slice(1));

function readAddress() {
  const address = addressNow();
  for (const [name, [field, read]] of Object.entries(ADDRESS)) {
    const value = read(address.get(name) || "");
    if (value !== undefined) set({ [field]: value });
  }
  check();
}
