// ---- start

function start() {
  const examples = data.examples.map((example, i) => [i, `${i + 1}. ${isolate(example.title)}`]);
  fill(byId("example"), examples, view.example);
  fill(byId("other"), [[-1, "none"], ...examples], view.other);
  byId("other-label").hidden = examples.length < 2;
  const named = (names) => names.map((name) => [name, name]);
  fillRadios(byId("kind"), "kind", named(KINDS));
  fillRadios(byId("unit"), "unit", Object.entries(UNITS));
  const picture = Object.values(data.examples[0].tracks).some(({ grid }) => grid) ? "picture" : "lines";
  fillRadios(byId("drawing"), "drawing", [["lines", picture], ["matrix", "matrix"]]);
  byId("more").open = window.innerWidth > PHONE;
  byId("help").querySelector("details").open = window.innerWidth > PHONE;
  readAddress();
  chooseOpening(addressNow());

  const listen = (id, event, changes) =>
    byId(id).addEventListener(event, (happened) => change(changes(happened.target.value)));
  for (const name of ["example", "other", "layer"])
    listen(name, "change", (value) => ({ [name]: Number(value) }));
  listen("head", "change", (value) => ({ head: /^\d+$/.test(value) ? Number(value) : value }));
  for (const name of ["measure", "scale", "kind", "unit", "drawing"])
    listen(name, "change", (value) => ({ [name]: value }));
  listen("step", "input", (value) => ({ step: Number(value) }));
  byId("before").addEventListener("click", () => change({ step: Math.max(1, stepNow() - 1) }));
  byId("next").addEventListener("click", () =>
    change({ step: Math.min(steppedTrack().labels.length, stepNow() + 1) }),
  );
  byId("beam-all").addEventListener("click", () => {
    isWholeBeamShown = !isWholeBeamShown;
    drawPredictions();
  });
  byId("heads").addEventListener("click", selectHead);
  byId("heads").addEventListener("keydown", moveHead);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("numbers").querySelector("details").addEventListener("toggle", fillTables);
  document.addEventListener("keydown", (event) => event.key === "Escape" && release());
  window.addEventListener("hashchange", () => (readAddress(), change({})));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) draw();
    width = window.innerWidth;
  });
  window.addEventListener("beforeprint", draw);
  change({});
}

start();
