// ---- all heads

function drawHeads() {
  const { scrollLeft } = byId("heads");
  const parent = clear(byId("heads"));
  const [layers, heads] = mapNow().weights.shape;
  // The heads of a deep model are small, so that all are seen together, but can still be touched.
  const largest = Math.max(LEAST_HEAD, Math.min(128, ALL_HEADS / layers));
  parent.style.gridTemplateColumns = `4.2em repeat(${heads}, minmax(${LEAST_HEAD}px, ${largest}px))`;
  add(parent, "span");
  for (let head = 0; head < heads; head++)
    add(parent, "span", {}, heads > 6 ? `${head}` : `head ${head}`);
  for (let layer = 0; layer < layers; layer++) {
    add(parent, "span", { class: "layer" }, `layer ${layer}`);
    for (let head = 0; head < heads; head++) {
      const chosen = layer === view.layer && head === view.head;
      const first = !layer && !head && view.head === "mean";
      const button = add(parent, "button", {
        type: "button",
        "aria-label": `layer ${layer}, head ${head}`,
        "aria-pressed": String(chosen),
        tabindex: chosen || first ? 0 : -1,
      });
      button.dataset.layer = layer;
      button.dataset.head = head;
      paint(add(button, "canvas", { "aria-hidden": "true" }), layer, head);
    }
  }
  if (!parent.querySelector("[tabindex='0']")) parent.querySelector("button").setAttribute("tabindex", "0");
  parent.scrollLeft = scrollLeft;
  showSideways(parent, parent.querySelector("[aria-pressed='true']"));
}

/** Scrolls to an element of a wide parent, but not up or down. */
function showSideways(parent, element) {
  if (!element) return;
  const [outer, inner] = [parent.getBoundingClientRect(), element.getBoundingClientRect()];
  const isSeen = inner.right <= outer.right && inner.left >= outer.left + 60; // next to the names of the layers
  if (!isSeen) parent.scrollLeft += (inner.left + inner.right - outer.left - outer.right) / 2;
}

function paint(canvas, layer, head) {
  const packed = view.measure === "norms" ? mapNow().norms : mapNow().weights;
  const rows = slice(packed, layer, head);
  const possible = view.measure === "norms" ? packed.scale : 1;
  const largest = (view.scale === "view" ? largestOf(rows) : possible) || 1;
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--first").trim();
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  rows.forEach((row, i) =>
    row.forEach((number, j) => {
      const alpha = Math.min(255, Math.round((255 * number) / largest));
      image.data.set([red, green, blue, alpha], 4 * (i * canvas.width + j));
    }),
  );
  context.putImageData(image, 0, 0);
}

function selectHead(event) {
  const button = event.target.closest("button");
  if (button) change({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
}

const headButton = (layer, head) => byId("heads").querySelector(`[data-layer="${layer}"][data-head="${head}"]`);

function moveHead(event) {
  const button = event.target.closest("button");
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!button || !move) return;
  event.preventDefault();
  const next = headButton(Number(button.dataset.layer) + move[0], Number(button.dataset.head) + move[1]);
  if (next) next.focus();
}
