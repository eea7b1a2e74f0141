// Sorts, filters and pages the tables of cells. Plain DOM; every text goes in as text.
"use strict";
for (const box of document.querySelectorAll("[data-cells]")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const PAGE = 50;
  const columns = data.columns.map((column) => ({ ...column, values: column.values.split("\t") }));
  const state = { column: -1, ascending: true, page: 0, order: Array.from({ length: data.rows }, (_, row) => row) };
  let haystack = null;

  const numeral = (text) => {
    const value = Number(text);
    if (Number.isInteger(value)) return Math.abs(value) >= 10000 ? value.toLocaleString("en-US") : String(value);
    return String(Number(value.toPrecision(4)));
  };
  const shown = (column, row) => {
    const raw = column.values[row] || "";
    if (raw === "") return "–";
    if (column.kind === "text") return column.words[Number(raw)];
    const [value, lo, hi, num, den] = raw.split("|");
    let text = value ? numeral(value) : "–";
    if (lo && hi) text += ` [${numeral(lo)}, ${numeral(hi)}]`;
    if (num && den) text += ` (${numeral(num)} / ${numeral(den)})`;
    return text;
  };
  const key = (column, row) => {
    const raw = column.values[row] || "";
    if (raw === "") return null;
    return column.kind === "text" ? column.words[Number(raw)] : Number(raw.split("|", 1)[0]);
  };

  const head = box.querySelector("thead tr");
  const buttons = columns.map((column, at) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.setAttribute("aria-sort", "none");
    if (column.kind !== "text") cell.className = "n";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.label;
    if (column.doc) button.title = column.doc;
    button.addEventListener("click", () => sortBy(at));
    cell.append(button);
    head.append(cell);
    return cell;
  });

  function sortBy(at) {
    state.ascending = state.column === at ? !state.ascending : true;
    state.column = at;
    buttons.forEach((cell, index) =>
      cell.setAttribute("aria-sort", index !== at ? "none" : state.ascending ? "ascending" : "descending"));
    arrange();
  }

  function arrange() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let order = Array.from({ length: data.rows }, (_, row) => row);
    if (words.length) {
      haystack ??= order.map((row) => columns.map((column) => shown(column, row)).join("\t").toLowerCase());
      order = order.filter((row) => words.every((word) => haystack[row].includes(word)));
    }
    if (state.column >= 0) {
      const column = columns[state.column];
      const keys = new Map(order.map((row) => [row, key(column, row)]));
      const sign = state.ascending ? 1 : -1;
      order.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        if (x === null || y === null) return (x === null) - (y === null) || a - b; // absent values stand last
        return (x < y ? -1 : x > y ? 1 : 0) * sign || a - b;
      });
    }
    state.order = order;
    state.page = 0;
    show();
  }

  const body = box.querySelector("tbody");
  const status = box.querySelector(".status");
  const pages = box.querySelector(".pages");
  const input = box.querySelector("input");
  const step = (label, to) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", () => { state.page = to(); show(); });
    pages.append(button);
    return button;
  };
  const last = () => Math.max(0, Math.ceil(state.order.length / PAGE) - 1);
  const back = [step("First", () => 0), step("Previous", () => state.page - 1)];
  const forth = [step("Next", () => state.page + 1), step("Last", last)];

  function show() {
    const from = state.page * PAGE;
    const rows = state.order.slice(from, from + PAGE);
    body.replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      for (const column of columns) {
        const cell = document.createElement("td");
        cell.textContent = shown(column, row);
        if (column.kind !== "text") cell.className = "n";
        line.append(cell);
      }
      return line;
    }));
    const all = state.order.length.toLocaleString("en-US");
    status.textContent = rows.length ? `Rows ${from + 1} to ${from + rows.length} of ${all}` : "No row has all of these words";
    back.forEach((button) => { button.disabled = state.page === 0; });
    forth.forEach((button) => { button.disabled = state.page >= last(); });
    pages.hidden = last() === 0;
  }

  let pending;
  input.addEventListener("input", () => { clearTimeout(pending); pending = setTimeout(arrange, 120); });
  show();
}
