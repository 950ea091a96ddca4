// ---- predictions

function drawPredictions() {
  const { tracks, predictions, beam, title, result } = exampleNow();
  const predicted = tracks.predicted ? tracks.predicted.labels : [];
  const reads = steppedTrack() === tracks.read; // an encoder predicts a token where it reads one
  const counts = reads || steppedTrack() === tracks.predicted; // else the steps count something else
  const step = counts ? stepNow() : tracks.read ? predicted.length : 1;
  const { choices } = predictions[Math.max(step, 1) - 1] || { choices: [] };
  const texts = clear(byId("texts"));
  add(texts, "span", { dir: "auto" }, title);
  if (result) texts.append(" → ");
  add(texts, "b", { dir: "auto" }, result);
  byId("tokens-part").hidden = !predicted.length;
  const list = clear(byId("probabilities"));
  predicted.forEach((label, i) => {
    const item = addBar(list, label, predictions[i].probability);
    item.classList.toggle("active", i + 1 === step);
    if (counts) item.addEventListener("click", () => change({ step: i + 1 }));
  });
  const read = tracks.read && `${reads ? "for" : "after"} “${isolate(tracks.read.labels[step - 1])}”`;
  const place = read ? `at position ${step}, ${read}` : `for ${predicted[step - 1]}`;
  byId("choices-title").textContent = `Most probable ${predicted.length ? place : "classes"}`;
  byId("choices-title").hidden = !choices.length;
  const bars = clear(byId("choices"));
  const chosen = predicted.length ? predicted[step - 1] : result;
  for (const [label, probability] of choices)
    addBar(bars, label, probability).classList.toggle("chosen", label === chosen);
  byId("smoothing").hidden = byId("finished-part").hidden = byId("beam-part").hidden = !beam;
  if (!beam) return;
  const finished = clear(byId("finished"));
  for (const [labels, score] of beam.finished) {
    const item = add(finished, "li");
    add(item, "span", { class: "score" }, score.toFixed(3));
    add(item, "span", { class: "text", dir: "auto" }, joined(labels));
  }
  drawBeam(beam.steps, step === predicted.length ? beam.steps.length : step);
}

const joined = (pieces) =>
  pieces
    .filter((piece) => piece !== "</s>")
    .join("")
    .replaceAll("▁", " ")
    .trim();

function addBar(list, piece, probability) {
  const item = add(list, "li");
  add(item, "span", { class: "text" }, isolate(piece));
  add(item, "span", {}, percent(probability));
  add(add(item, "span"), "div", { class: "bar", style: `width: ${(100 * probability).toFixed(2)}%` });
  return item;
}
