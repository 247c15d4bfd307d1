"use strict";
// Sorting, filtering, links into closed parts, copying. Without this script everything can still be read and opened.

const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e-3, s: 1, min: 60, h: 3600 };
const NUMBER = /^[<>±~ ]*([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z%]*)/;
const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// The number a cell begins with, in its base unit; null where it holds a word or nothing.
function number(text) {
  const found = NUMBER.exec(text.trim());
  return found && Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
}

function say(text) {
  document.getElementById("said").textContent = text;
}

// Sorting: first by what the column means to most (large first or last by a second press), a third restores the order.
function sort(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  rows.forEach((row, place) => { row.dataset.place ??= place; });
  const texts = new Map(rows.map((row) => [row, row.cells[column].textContent]));
  const numeric = rows.some((row) => number(texts.get(row)) !== null) && rows.every((row) => !row.cells[column].classList.contains("t"));
  const compare = (a, b) => {
    const [x, y] = numeric ? [number(texts.get(a)), number(texts.get(b))] : [texts.get(a), texts.get(b)];
    if (numeric && (x === null || y === null)) return (x === null) - (y === null);  // words last, either way
    return direction * (numeric ? x - y : words.compare(x, y));
  };
  const inPlace = (a, b) => a.dataset.place - b.dataset.place;
  rows.sort((a, b) => (direction ? compare(a, b) : 0) || inPlace(a, b));
  body.append(...rows);
}

function sortable(table) {
  for (const head of table.tHead.querySelectorAll("[data-c]")) {
    const name = head.textContent;
    const button = element("button", name, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const direction = { ascending: -1, descending: 0 }[head.ariaSort] ?? 1;
      for (const other of table.tHead.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      if (direction) head.ariaSort = direction > 0 ? "ascending" : "descending";
      sort(table, Number(head.dataset.c), direction);
      say(direction ? `sorted by ${name}, ${head.ariaSort}` : "in the first order");
    });
  }
}

// Filtering: a row stays if every choice fits it. Where GPU counts are columns, a count chosen hides the others.
function filterable(bar) {
  const scope = document.getElementById(bar.dataset.for);
  const rows = [...scope.querySelectorAll("tr[data-strategy]")].map((row) => {
    const keys = { ...row.closest("[data-model]").dataset, ...row.dataset };
    return { row, keys, text: `${row.textContent} ${keys.model}`.toLowerCase() };
  });
  const counts = [...scope.querySelectorAll("th[data-n]")];
  const labelled = (name, control) => {
    const label = element("label");
    label.append(element("span", name), control);
    bar.append(label);
    return control;
  };
  const search = labelled("Text", element("input", "", { type: "search", size: 16 }));
  const selects = {};
  for (const key of bar.dataset.keys.split(" ")) {
    const values = new Set(rows.map(({ keys }) => keys[key]));
    if (key === "n") counts.forEach((head) => values.add(head.dataset.n));
    const name = { n: "GPUs (N)" }[key] ?? key[0].toUpperCase() + key.slice(1);
    const select = labelled(name, element("select"));
    select.append(element("option", "all", { value: "" }));
    for (const value of [...values].filter(Boolean).sort(words.compare)) select.append(element("option", value, { value }));
    selects[key] = select;
  }
  const clear = element("button", "Clear", { type: "button", class: "plain" });
  const count = element("p", "", { class: "count", role: "status" });
  const empty = element("p", "No row matches. Take a choice back, or clear the filter.", { class: "empty", hidden: "" });
  bar.append(clear, count);
  bar.after(empty);

  const apply = () => {
    const wanted = search.value.trim().toLowerCase().split(/\s+/);
    const chosen = Object.entries(selects).filter(([, select]) => select.value);
    const fits = (keys, [key, select]) => keys[key] === select.value || (key === "n" && keys.n === undefined);
    let left = 0;
    for (const { row, keys, text } of rows) {
      row.hidden = !(wanted.every((word) => text.includes(word)) && chosen.every((choice) => fits(keys, choice)));
      left += !row.hidden;
    }
    for (const head of counts) {
      const hide = Boolean(selects.n?.value) && head.dataset.n !== selects.n.value;
      const [first, width] = [Number(head.dataset.at), head.colSpan];
      const table = head.closest("table");
      head.hidden = hide;
      for (let at = first; at < first + width; at += 1) {
        table.tHead.querySelector(`[data-c="${at}"]`).hidden = hide;
        for (const row of table.tBodies[0].rows) row.cells[at].hidden = hide;
      }
    }
    for (const part of scope.querySelectorAll(".compared")) {
      const own = [...part.querySelectorAll("tr[data-strategy]")];
      part.hidden = own.length > 0 && own.every((row) => row.hidden);
    }
    for (const group of scope.querySelectorAll("section.group")) {
      const parts = [...group.querySelectorAll(".compared")];
      group.hidden = parts.length > 0 && parts.every((part) => part.hidden);
    }
    empty.hidden = left > 0;
    count.textContent = `${left} of ${rows.length} rows`;
  };
  for (const event of ["input", "change"]) bar.addEventListener(event, apply);
  clear.addEventListener("click", () => {
    search.value = "";
    for (const select of Object.values(selects)) select.value = "";
    apply();
    search.focus();
  });
  bar.hidden = false;
  apply();
}

// A link to something inside a closed part opens it.
function open(hash) {
  const target = document.getElementById(decodeURIComponent(hash.slice(1)));
  for (let part = target?.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  if (target?.matches("details")) {
    target.scrollIntoView();
    target.querySelector("summary").focus({ preventScroll: true });
  }
}

function copyable(box) {
  const pre = box.querySelector("pre");
  const button = element("button", "Copy", { type: "button", class: "plain", "aria-label": `Copy: ${box.ariaLabel}` });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      say("copied");
      button.textContent = "Copied";
    } catch {  // no clipboard for this page: leave the text selected
      getSelection().selectAllChildren(pre);
      say("selected");
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  box.append(button);
}

// What does not scroll needs no stop of the Tab key.
const watched = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

document.querySelectorAll("table[data-sorts]").forEach(sortable);
document.querySelectorAll(".filter").forEach(filterable);
document.querySelectorAll(".command").forEach(copyable);
document.querySelectorAll(".scroll, pre").forEach((box) => watched.observe(box));
addEventListener("hashchange", () => open(location.hash));
document.addEventListener("click", (event) => {  // a second press of the same link changes no hash
  const link = event.target.closest?.('a[href^="#"]');
  if (link) open(link.hash);
});
addEventListener("load", () => { if (location.hash) open(location.hash); });

// On paper, folded claims and the scenario are open; of the rows those that the reader has opened.
const folded = () => document.querySelectorAll("details:not(.cell)");
addEventListener("beforeprint", () => folded().forEach((part) => { part.dataset.was = part.open; part.open = true; }));
addEventListener("afterprint", () => folded().forEach((part) => { part.open = part.dataset.was === "true"; }));
