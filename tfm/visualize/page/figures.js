// ---- figures

let updates = [];
let matrices = [];

function updateActive() {
  updates.forEach((update) => update());
  const told = matrices.flatMap(({ name, number, matrix }) => {
    const { side, index } = inMatrix(matrix, activeToken());
    if (index < 0) return [];
    const text = describeToken(matrix, side, index);
    return matrices.length > 1 ? `${matrix.signed ? name : `Example ${number + 1}`}: ${text}` : text;
  });
  byId("reading").textContent = told.join("\n");
}

function drawFigures() {
  const parent = clear(byId("figures"));
  const read = (number) => ({
    name: data.examples[number].title,
    number,
    matrix: matrixOf(number, view.head, view.unit),
  });
  const first = read(view.example);
  matrices = [first];
  if (view.other >= 0) {
    const second = read(view.other);
    first.matrix.largest = second.matrix.largest = Math.max(first.matrix.largest, second.matrix.largest);
    const pairs = correspondences(view.example, view.other);
    for (const side of SIDES)
      second.matrix.indices[side] = indicesInFirst(second.matrix[side], pairs[side]);
    matrices.push(second, { name: "Difference", matrix: difference(first.matrix, second.matrix, pairs) });
  }
  const draw = view.drawing === "lines" ? drawLines : drawMatrix;
  // All figures first: the width of each depends on how many there are.
  const figures = matrices.map(({ name, matrix }) => addFigure(parent, name, matrix));
  updates = matrices.map(({ name, matrix }, i) => draw(figures[i], matrix, name));
  updates.push(drawStrip(first.matrix));
  updateActive();
  fillTables();
}

function addFigure(parent, name, matrix) {
  const figure = add(parent, "figure");
  const caption = add(figure, "figcaption");
  add(caption, "b", { dir: "auto" }, name);
  if (matrix.signed)
    caption.append(": blue where the first example has more, orange where the second has more");
  return figure;
}

function fillTables() {
  const tables = clear(byId("tables"));
  if (byId("numbers").querySelector("details").open)
    matrices.forEach(({ name, matrix }) => drawTable(tables, matrix, name));
}
