// ---- the table of numbers

function drawTable(parent, matrix, name) {
  const table = add(parent, "table");
  add(table, "caption", {}, `${name}; rows: query, columns: key`);
  const head = add(add(table, "thead"), "tr");
  add(head, "td");
  matrix.keys.forEach((key) => add(head, "th", { scope: "col" }, key));
  const body = add(table, "tbody");
  matrix.rows.forEach((row, i) => {
    const line = add(body, "tr");
    add(line, "th", { scope: "row" }, matrix.queries[i]);
    row.forEach((number) => add(line, "td", {}, shown(number, matrix.signed)));
  });
}
