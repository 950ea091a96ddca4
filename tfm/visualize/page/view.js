// ---- the view

const headName = () =>
  view.head === "mean" ? "mean of the heads" : view.head === "rollout" ? "rollout" : `head ${view.head}`;

/** What the steps count. "Step" alone would mean a step of training. */
const stepName = () => (steppedTrack().grid ? "Patch" : looksAtImage() ? "Query" : "Position");

function drawStep() {
  const count = steppedTrack().labels.length;
  Object.assign(byId("step"), { max: count, value: stepNow() });
  const name = stepName();
  const label = isolate(steppedTrack().labels[stepNow() - 1]);
  byId("step-value").textContent = `${stepNow()} of ${count}`;
  byId("step-name").textContent = name;
  byId("step").setAttribute("aria-valuetext", `${stepNow()} of ${count}, ${label}`);
  byId("before").setAttribute("aria-label", `Previous ${name.toLowerCase()}`);
  byId("next").setAttribute("aria-label", `Next ${name.toLowerCase()}`);
  byId("before").setAttribute("aria-disabled", String(stepNow() === 1));
  byId("next").setAttribute("aria-disabled", String(stepNow() === count));
  byId("stepper").hidden = count < 2;
}

const drawListeners = []; // functions that are called after each drawing of the view

function draw() {
  const map = mapNow();
  const ids = ["more", "attention-title", "hint", "strip", "figures", "heads-section", "numbers", "help"];
  for (const id of ids) byId(id).hidden = !map;
  matrices = updates = [];
  if (map) {
    const [layers, heads] = map.weights.shape;
    const numbered = (count) => Array.from({ length: count }, (_, i) => [i, `${i}`]);
    fill(byId("layer"), numbered(layers), view.layer);
    const whole = [["mean", "mean of the heads"], ...(map.rollout ? [["rollout", "rollout"]] : [])];
    fill(byId("head"), [...whole, ...numbered(heads)], view.head);
    byId("measure-label").hidden = byId("norms-help").hidden = !map.norms;
    byId("unit").hidden = byId("text-help").hidden = looksAtImage();
    const title = TITLES[view.kind] || `Self-attention of the ${view.kind}`;
    byId("attention-title").textContent = `${title}, layer ${view.layer}, ${headName()}`;
    byId("view-name").textContent = `${view.kind}, layer ${view.layer}, ${headName()}`;
    byId("hint").textContent = HINTS[`${map.queries} ${map.keys}`] || "";
    byId("why").textContent = openingReason();
    drawFigures();
    drawHeads();
  }
  drawStep();
  drawPredictions();
  for (const listener of drawListeners) listener();
}

function fill(select, options, value) {
  clear(select);
  for (const [key, text] of options) add(select, "option", { value: key }, text);
  select.value = String(value);
}

function fillRadios(fieldset, name, options) {
  for (const [key, text] of options) {
    const label = add(fieldset, "label");
    add(label, "input", { type: "radio", name, value: key });
    label.append(text);
  }
}

/** Brings every choice into its range. */
function check() {
  const count = data.examples.length;
  view.example = view.example >= 0 && view.example < count ? view.example : 0;
  if (view.other === view.example || view.other >= count) view.other = -1;
  if (!mapNow()) view.kind = ["cross", ...KINDS].find((kind) => exampleNow().attention[kind]) || "";
  if (view.step < 0 || view.step > steppedTrack().labels.length) view.step = 0;
  const map = mapNow();
  if (!map) return;
  const [layers, heads] = map.weights.shape;
  view.layer = wanted.layer < 0 ? layers - 1 : Math.min(layers - 1, wanted.layer);
  view.head = wanted.head === "rollout" && !map.rollout ? "mean" : wanted.head;
  if (typeof view.head === "number") view.head = Math.min(heads - 1, view.head);
  if (!map.norms) view.measure = "weights";
}

function set(changes) {
  Object.assign(view, changes);
  for (const name of Object.keys(wanted)) wanted[name] = changes[name] ?? wanted[name];
}

function change(changes) {
  const before = steppedTrack().labels.join();
  const onlyStep = Object.keys(changes).join() === "step";
  pointed = null;
  const focused = document.activeElement?.dataset.head ? { ...document.activeElement.dataset } : null;
  set(changes);
  check();
  if (steppedTrack().labels.join() !== before) view.step = 0;
  writeControls();
  if (onlyStep) {
    updateActive();
    drawStep();
    drawPredictions();
  } else draw();
  if (Object.keys(changes).length) announce(onlyStep);
  writeAddress();
  if (focused) headButton(focused.layer, focused.head).focus();
}

let announcing = 0;

/** Has screen readers read what a change shows. Of several quick changes, only the last one is read. */
function announce(onlyStep) {
  const place = `${stepName()} ${byId("step-value").textContent}`;
  const what = onlyStep ? place : byId("attention-title").textContent;
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    byId("announcement").textContent = `${what}. ${byId("reading").textContent.replaceAll("\n", ". ")}`;
  }, 300);
}

function writeControls() {
  for (const name of ["example", "other", "measure", "scale"]) byId(name).value = String(view[name]);
  for (const name of ["kind", "unit", "drawing"]) {
    const radio = byId(name).querySelector(`[value="${view[name]}"]`);
    if (radio) radio.checked = true;
  }
}
