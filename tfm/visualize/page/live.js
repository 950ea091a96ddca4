// ---- live: own examples and parts that are turned off, with the server of tfm explore or the model of the page

const live = data.live;
const MOST_EXAMPLES = 40; // that a page holds
let clicks = "off"; // what a click on a head does: "off" or "show"
let requests = 0;
let pending = null; // {base, off} of the request without an answer

live.examples.forEach((about, number) => (data.examples[number].live = { ...about, off: [], base: number }));

const takesPictures = Boolean(live.takesPictures);
const positions = live.positions || {}; // {point: number of tokens with a switch}
const otherHeads = live.otherHeads || {}; // of attention without a picture: {point: [name, number of heads]}

const isOff = (off, [point, index]) => off.some(([name, i]) => name === point && i === index);
const keyOf = (off) => JSON.stringify([...off].sort());

/** The original example that the view shows, and the parts that are off in the view or in the current request. */
function editNow() {
  if (pending) return pending;
  const about = exampleNow().live;
  if (about.off.length) return { base: about.base, off: about.off };
  const other = view.other >= 0 ? data.examples[view.other].live : null;
  const isEdit = other && other.off.length && other.base === view.example;
  return { base: view.example, off: isEdit ? other.off : [] };
}

/** The index of the example that the current parts make, or -1 if everything is on. */
function editedExample() {
  const { base, off } = editNow();
  return off.length ? findExample(data.examples[base].live, off) : -1;
}

/** The index of the example with a text or a picture and with these parts off, or -1. */
const findExample = ({ text, picture }, off) =>
  data.examples.findIndex(
    ({ live: about }) =>
      about.text === text && (about.picture || null) === (picture || null) && keyOf(about.off) === keyOf(off),
  );

/** Turns a part off, or on again. */
function toggle(part) {
  const { base, off } = editNow();
  const others = off.filter((each) => !isOff([part], each));
  look(base, others.length < off.length ? others : [...off, part]);
}

/** Shows an example without some parts, next to the original. */
async function look(base, off) {
  pending = { base, off };
  showParts();
  const number = await request(data.examples[base].live, off, base);
  if (number === null) return;
  change(off.length ? { example: base, other: number } : { example: base, other: -1 });
}

/**
 * The index of an example, which is computed unless the page has it; null if it has none, or is late.
 * The example is {text, picture: the file in base64, or null}.
 */
async function request({ text, picture = null }, off, base) {
  const mine = ++requests;
  const known = findExample({ text, picture }, off);
  let number = known < 0 ? null : known;
  let told = "";
  if (known < 0 && data.examples.length >= MOST_EXAMPLES) {
    told = `This page holds ${MOST_EXAMPLES} examples. Reload it to begin again.`;
  } else if (known < 0) {
    byId("live-status").textContent = "Computing …";
    const began = performance.now();
    const answer = await post({ text, picture, off, known: data.examples.map(({ live: about }) => about.id) });
    if (mine !== requests) return null;
    if (!answer.error) number = addExample(answer, base, picture);
    const time = `${Math.round(performance.now() - began)} ms`;
    const result = answer.error ? "" : describeResult(data.examples[number]) || "Done.";
    told = answer.error || [`${result} (${time})`, ...answer.notes].join("\n");
  }
  pending = null;
  byId("live-status").textContent = told;
  if (number === null) showParts();
  return number;
}

/** What the model makes of an example, in words; "" if it makes nothing of examples. */
const describeResult = ({ result }) => (result === "" ? "The output is empty." : result || "");

/** Asks the server, or the model that the page contains. Both take and return the same, see tfm.visualize.live. */
async function post(body) {
  if (globalThis.inPage) return inPage.answer(body);
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(live.path, { method: "POST", headers, body: JSON.stringify(body) });
    return await answer.json();
  } catch {
    return { error: "The server does not answer. Is tfm explore still running?" };
  }
}

function addExample({ example, alignments }, base, picture) {
  const number = data.examples.length;
  data.examples.push(example);
  Object.assign(example.live, { base: base ?? number, picture });
  data.examples.slice(0, number).forEach(({ live: about }, i) => {
    data.alignments[`${i},${number}`] = alignments[about.id];
  });
  for (const id of ["example", "other"])
    add(byId(id), "option", { value: number }, `${number + 1}. ${isolate(example.title)}`);
  byId("other-label").hidden = false;
  return number;
}

// ---- the drawing of the parts

function addToggle(parent, part, text) {
  const button = add(parent, "button", { type: "button", "aria-pressed": "false" }, isolate(text));
  button.addEventListener("click", () => toggle(part));
  return { button, part };
}

let tokens = { base: -1, toggles: [] };
let sublayers = [];

function showTokens() {
  const { base } = editNow();
  if (tokens.base === base) return;
  tokens = { base, toggles: [] };
  const parent = clear(byId("live-tokens"));
  for (const [name, point] of Object.entries(live.tracks)) {
    const track = data.examples[base].tracks[name];
    if (!track) continue;
    add(parent, "h3", {}, `Embedding of a ${track.grid ? "" : "token: "}${track.element}`);
    const group = add(parent, "div", { role: "group", "aria-label": track.element, dir: directionOf(track.labels) });
    const [rows, columns] = track.grid || [0, 0];
    const first = track.labels.length - rows * columns; // patch; the elements before it are tokens
    const isDrawn = data.examples[base].made === name; // by the model, after its tokens are read
    track.labels.slice(0, first).forEach((label, index) => addToken(group, point, index, label));
    if (!track.grid || isDrawn) continue;
    const grid = addPatches(group, track.picture, rows, columns);
    track.labels.slice(first).forEach((label, index) => {
      const button = addToken(grid, point, first + index, "");
      button?.setAttribute("aria-label", label);
      button?.setAttribute("title", label);
      if (button) button.tabIndex = index ? -1 : 0;
    });
  }
}

/** Adds the button of a token or a patch, unless it has no switch. */
function addToken(parent, point, index, label) {
  if (index >= (positions[point] ?? Infinity)) return null;
  const toggle = addToggle(parent, [point, index], label);
  tokens.toggles.push(toggle);
  return toggle.button;
}

/** Adds the grid for the buttons of patches, on their picture. It is one stop of the Tab key. */
function addPatches(parent, picture, rows, columns) {
  const size = Math.max(24, Math.min(44, Math.floor(320 / columns))); // pixels of a button
  const grid = add(parent, "div", { class: "patches", role: "group", "aria-label": "Patches: arrow keys move", dir: "ltr" });
  grid.style.width = `${columns * size}px`;
  grid.style.gridTemplateColumns = `repeat(${columns}, ${size}px)`;
  grid.style.gridAutoRows = `${size}px`;
  grid.style.backgroundImage = `url("${picture}")`;
  grid.addEventListener("keydown", (event) => {
    const move = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const buttons = [...grid.children];
    const next = buttons[buttons.indexOf(event.target) + move];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return grid;
}

/** The name of a part in words. */
function nameOf([point, index]) {
  if (index === null) return live.sublayers[point];
  for (const [kind, points] of Object.entries(live.heads))
    if (points.includes(point)) return `${kind} layer ${points.indexOf(point)}, head ${index}`;
  if (otherHeads[point]) return `${otherHeads[point][0]}, head ${index}`;
  const [name] = Object.entries(live.tracks).find(([, embeddings]) => embeddings === point);
  const track = data.examples[editNow().base].tracks[name];
  const label = isolate(track?.labels[index] ?? `${index}`);
  return track?.grid ? `${track.element} ${label}` : `${name} token ${label}`;
}

function showParts() {
  const { base, off } = editNow();
  byId("live-parts").hidden = !live.hasParts;
  const list = clear(byId("live-off"));
  if (!off.length) list.textContent = "Everything is on. Click a head in the picture of all heads to turn it off.";
  for (const part of off) {
    const button = add(list, "button", { type: "button", "aria-label": `Turn on ${nameOf(part)}` }, `${nameOf(part)} ×`);
    button.addEventListener("click", () => toggle(part));
  }
  if (off.length) {
    const button = add(list, "button", { type: "button", id: "live-all" }, "Turn everything on");
    button.addEventListener("click", () => look(base, []));
  }
  const { unknown = [] } = exampleNow().live;
  byId("live-unknown").hidden = !unknown.length;
  byId("live-unknown").textContent = `Not in the vocabulary: ${unknown.map((part) => `“${isolate(part)}”`).join(", ")}`;
  showTokens();
  for (const { button, part } of [...sublayers, ...tokens.toggles])
    button.setAttribute("aria-pressed", String(isOff(off, part)));
  for (const button of byId("heads").querySelectorAll("button")) {
    const point = live.heads[view.kind]?.[button.dataset.layer];
    const isHeadOff = isOff(off, [point, Number(button.dataset.head)]);
    button.classList.toggle("off", isHeadOff);
    const name = `layer ${button.dataset.layer}, head ${button.dataset.head}`;
    button.setAttribute("aria-label", isHeadOff ? `${name}, turned off` : name);
  }
  const point = live.heads[view.kind]?.[view.layer];
  const shown = byId("live-head");
  shown.hidden = !point || typeof view.head !== "number";
  const turn = isOff(off, [point, view.head]) ? "on" : "off";
  shown.textContent = `Turn ${turn} layer ${view.layer}, head ${view.head}`;
  byId("live-mode").hidden = !point;
  showEdit();
}

/** Both results, the change of each probability, and the Python that does the same. */
function showEdit() {
  const number = pending ? -1 : editedExample();
  byId("live-edit").hidden = number < 0;
  if (number < 0) return;
  const edited = data.examples[number];
  const original = data.examples[edited.live.base];
  const results = clear(byId("live-results"));
  if (original.result !== null)
    for (const [name, example] of [["With everything on", original], ["With these parts off", edited]]) {
      add(results, "dt", {}, name);
      add(results, "dd", { dir: "auto" }, describeResult(example));
    }
  const table = clear(byId("live-changes"));
  table.hidden = !edited.live.changes.length; // DALL-E predicts no labels
  add(table, "caption", {}, edited.live.caption);
  const head = add(add(table, "thead"), "tr");
  for (const name of ["", "everything on", "parts off", "change"]) add(head, "th", { scope: "col" }, name);
  const body = add(table, "tbody");
  for (const [label, before, after] of edited.live.changes) {
    const row = add(body, "tr");
    add(row, "th", { scope: "row", dir: "auto" }, label);
    for (const number of [before, after]) add(row, "td", {}, number === null ? "–" : percent(number));
    const difference = before === null || after === null ? null : after - before;
    const kind = Math.abs(difference) < 0.01 ? "" : difference < 0 ? "less" : "more";
    const text = difference === null ? "–" : `${difference > 0 ? "+" : ""}${(100 * difference).toFixed(2)}`;
    add(row, "td", { class: kind }, text);
  }
  byId("live-python").textContent = edited.live.python;
}

// ---- the start

function startLive() {
  byId("live-name").textContent = live.help;
  sublayers = Object.entries(live.sublayers).map(([point, name]) =>
    addToggle(byId("live-sublayers"), [point, null], name),
  );
  for (const [point, [name, count]] of Object.entries(otherHeads)) {
    const group = add(byId("live-other-heads"), "div", { role: "group", "aria-label": `Heads of ${name}` }, `${name}: `);
    for (let head = 0; head < count; head++) sublayers.push(addToggle(group, [point, head], `head ${head}`));
  }
  const mode = document.createElement("fieldset");
  mode.id = "live-mode";
  add(mode, "legend", {}, "A click on a head");
  fillRadios(mode, "live-mode", [["off", "turns it off or on"], ["show", "shows it"]]);
  mode.querySelector("input").checked = true;
  mode.addEventListener("change", (event) => (clicks = event.target.value));
  const button = document.createElement("button");
  Object.assign(button, { type: "button", id: "live-head" });
  button.addEventListener("click", () => toggle([live.heads[view.kind][view.layer], view.head]));
  byId("heads").before(mode, button);
  const unknown = Object.assign(document.createElement("p"), { id: "live-unknown", className: "hint" });
  byId("strip").after(unknown);
  byId("heads-section").after(byId("live-parts")); // a click shows its result next to the heads
  byId("heads").addEventListener("click", clickHead, { capture: true });
  byId("live").addEventListener("submit", submitExample);
  byId("live-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("live").requestSubmit();
  });
  byId("live-lines").checked = !live.hasLines;
  byId("live-text").addEventListener("input", () => (byId("live-lines-label").hidden = linesOf().length < 2));
  byId("live-file-label").hidden = !takesPictures;
  byId("live-file").addEventListener("change", async ({ target }) => {
    await lookAtFiles(target.files);
    target.value = ""; // else a second choice of the same file would be no change
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault(); // else the browser would leave the page to show the file
    lookAtFiles(event.dataTransfer.files);
  });
  byId("live-copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId("live-python").textContent);
    byId("live-status").textContent = "Copied the Python code.";
  });
  drawListeners.push(showParts);
  showParts();
}

function clickHead(event) {
  const button = event.target.closest("button");
  const point = live.heads[view.kind]?.[button?.dataset.layer];
  if (clicks !== "off" || !point) return;
  event.stopPropagation();
  toggle([point, Number(button.dataset.head)]);
}

async function submitExample(event) {
  event.preventDefault();
  const lines = linesOf();
  const areExamples = lines.length > 1 && byId("live-lines").checked;
  await lookAtAll((areExamples ? lines : [byId("live-text").value]).map((text) => ({ text })));
}

/** The lines of the field that are not blank. */
const linesOf = () => byId("live-text").value.split("\n").filter((line) => line.trim());

/** Shows new examples: the first next to the second, if there are several. */
async function lookAtAll(examples) {
  pending = null;
  const numbers = [];
  const told = [];
  for (const example of examples) {
    const number = await request(example, []);
    told.push(byId("live-status").textContent);
    if (number === null) break;
    numbers.push(number);
  }
  if (examples.length > 1) byId("live-status").textContent = told.join("\n");
  if (numbers.length) change({ example: numbers[0], other: numbers[1] ?? -1 });
}

/** Shows pictures of the user, which the server reads. */
async function lookAtFiles(files) {
  const pictures = [...files];
  if (!pictures.length) return;
  const tooLarge = pictures.find(({ size }) => size > live.maxPictureBytes);
  if (!takesPictures || tooLarge) {
    byId("live-status").textContent = takesPictures
      ? `${tooLarge.name} has more than ${live.maxPictureBytes / 2 ** 20} MB. Make it smaller.`
      : "The model of this run reads no pictures. Type an example instead.";
    return;
  }
  const contents = await Promise.all(pictures.map(readBase64));
  await lookAtAll(pictures.map(({ name }, i) => ({ text: name, picture: contents[i] })));
}

/** The content of a file in base64. */
function readBase64(file) {
  return new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => done(""); // such as a folder, which the server reports as no picture
    reader.readAsDataURL(file);
  });
}

startLive();
