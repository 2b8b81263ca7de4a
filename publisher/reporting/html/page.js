"use strict";
// Sorts a table by the column whose heading is pressed: up, then down.
// Buttons, so that keys press them too.
const said = document.getElementById("sorted");
const order = new Intl.Collator(undefined, { numeric: true });

function compare(first, second, numbers) {
  return numbers ? Number(first) - Number(second) : order.compare(first, second);
}

function sort(button) {
  const heading = button.closest("th");
  const table = heading.closest("table");
  const numbers = heading.classList.contains("number");
  const now = heading.getAttribute("aria-sort");
  const up = now ? now === "descending" : !numbers;
  const direction = up ? "ascending" : "descending";
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  const rows = Array.from(table.tBodies[0].rows, (row) => {
    const cell = row.cells[heading.cellIndex];
    return [cell.dataset.value ?? cell.textContent, row];
  });
  rows.sort(([first], [second]) => {
    // What is not known comes last, whichever way.
    const unknown = (first === "") - (second === "");
    return unknown || (up ? 1 : -1) * compare(first, second, numbers);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
  said.textContent = `${table.caption.textContent}: sorted by ${button.textContent}, ${direction}`;
}

for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sort(button));
}

// Draws what is chosen of the period, from the sums in the page.
const sums = JSON.parse(document.getElementById("sums").textContent);
const DAY_MS = 86400000;
const SERIES = 6;
const MOST_DAYS = 92;
const TITLE = 40;
const LETTER = 8;
const TOP = 10;
const WIDTH = matchMedia("(max-width: 40rem)").matches ? 430 : 900;
const PLOT = 240;
const BELOW = 46;
const NAMES = ["vo", "queue", "user", "project"];
const nameless = (at) => NAMES[at] === "vo" ? "(no VO)" : "(none)";
const [FIRST, LAST] = sums.days;
const form = document.getElementById("choose");
const chart = document.getElementById("chart");
const reading = document.getElementById("reading");
const chosen = document.getElementById("chosen");
chart.setAttribute("viewBox", `0 0 ${WIDTH} ${TOP + PLOT + BELOW}`);

const dateOf = (day) => new Date(day * DAY_MS).toISOString().slice(0, 10);
const dayOf = (text) => Math.round(Date.parse(text) / DAY_MS);
const isDay = (step) => step.name.length > "2026-10".length;
const share = (part, whole) => whole ? `${(part / whole * 100).toFixed(1)} %` : "–";
const total = (numbers) => numbers.reduce((one, other) => one + other, 0);

function amount(number) {
  if (Math.abs(number) >= 100 || Number.isInteger(number)) {
    return number.toLocaleString("en-US", { maximumFractionDigits: 0 });
  }
  return number >= 0.1 ? number.toFixed(1) : "< 0.1";
}

function short(number) {
  if (number < 10000) return amount(number);
  const [part, letter] = number >= 1e6 ? [number / 1e6, "M"] : [number / 1e3, "k"];
  return part.toLocaleString("en-US", { maximumFractionDigits: 3 }) + letter;
}

function draw(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function roundStep(least) {
  if (least <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
}

function choose() {
  const by = NAMES.indexOf(form.by.value);
  const measure = sums.measures[form.measure.value];
  const wanted = NAMES.map((name) => form[name].value === "" ? -1 : Number(form[name].value));
  const from = Math.max(dayOf(form.from.value) || FIRST, FIRST);
  const to = Math.min(dayOf(form.to.value) || LAST, LAST);
  const byDay = !sums.months && to - from < MOST_DAYS;
  const stepOf = (day) => byDay ? dateOf(day) : dateOf(day).slice(0, 7);
  const steps = new Map();
  for (let day = from; day <= to; day++) {
    const name = stepOf(day);
    if (!steps.has(name)) steps.set(name, { name, first: day, parts: new Map() });
  }
  const groups = new Map();
  for (const [day, ...rest] of sums.cells) {
    const step = steps.get(stepOf(day));
    if (!step || (byDay && (day < from || day > to))) continue;
    if (wanted.some((name, at) => name >= 0 && rest[at] !== name)) continue;
    const name = rest[by];
    const values = rest.slice(NAMES.length);
    const value = values[measure.at] / measure.divisor;
    const group = groups.get(name) ?? { value: 0, jobs: 0, failed: 0 };
    group.value += value;
    group.jobs += values[0];
    group.failed += values[1];
    groups.set(name, group);
    step.parts.set(name, (step.parts.get(name) ?? 0) + value);
  }
  const ranked = [...groups].sort((one, other) => other[1].value - one[1].value);
  const label = (name) => sums.names[by][name] || nameless(by);
  const named = ranked.filter(([name]) => label(name) !== sums.others);
  const colours = new Map(named.slice(0, SERIES).map(([name], at) => [name, at]));
  show([...steps.values()], ranked, colours, label, measure.name, byDay ? "day" : "month");
  list(ranked, colours, label, measure.name);
}

function show(steps, ranked, colours, label, title, word) {
  // GPU hours stay so.
  const unit = title.replace(/^[A-Z](?=[a-z])/, (first) => first.toLowerCase());
  const totals = steps.map((step) => total([...step.parts.values()]));
  const most = Math.max(...totals, 0);
  const tick = roundStep(most / 4);
  const top = Math.max(Math.ceil(most / tick), 1) * tick;
  const place = (value) => TOP + PLOT - value / top * PLOT;
  const labels = [];
  for (let at = 0; at <= top * 1.001; at += tick) labels.push([at, short(at)]);
  const left = TITLE + Math.max(...labels.map(([, text]) => text.length)) * LETTER;
  const width = (WIDTH - left - 10) / steps.length;
  const every = Math.ceil(steps.length / (WIDTH > 600 ? 9 : 5));
  const write = (x, y, text, more) => {
    draw(chart, "text", { x, y, "text-anchor": "middle", ...more }, text);
  };
  chart.replaceChildren();
  for (const [at, text] of labels) {
    draw(chart, "line", { x1: left, x2: WIDTH - 10, y1: place(at), y2: place(at) });
    write(left - 6, place(at) + 4, text, { "text-anchor": "end" });
  }
  steps.forEach((step, at) => {
    let below = 0;
    const parts = [];
    const heights = Array(SERIES + 1).fill(0);
    for (const [name] of ranked) {
      const value = step.parts.get(name);
      if (!value) continue;
      heights[colours.get(name) ?? SERIES] += value;
      if (parts.length < 8) parts.push(`${label(name)} ${amount(value)}`);
    }
    heights.forEach((value, colour) => {
      if (!value) return;
      draw(chart, "rect", {
        class: `s${colour}`,
        x: left + (at + 0.06) * width,
        y: place(below + value),
        width: Math.max(width * 0.88, 0.5),
        height: place(below) - place(below + value),
      });
      below += value;
    });
    if (at % every === 0) {
      const short = isDay(step) ? step.name.slice("2026-".length) : step.name;
      write(left + (at + 0.5) * width, TOP + PLOT + 17, short);
    }
    const column = { x: left + at * width, y: TOP, width, height: PLOT };
    const area = draw(chart, "rect", { class: "area", ...column });
    area.step = step;
    area.says = `${step.name}: ${amount(below)} ${unit}`;
    if (parts.length) area.says += ` (${parts.join(", ")})`;
    draw(area, "title", {}, area.says);
  });
  const middle = TOP + PLOT / 2;
  const upright = { class: "axis", transform: `rotate(-90 12 ${middle})` };
  const bottom = TOP + PLOT + BELOW - 8;
  write((left + WIDTH) / 2, bottom, `${word} in which jobs ended, UTC`, { class: "axis" });
  write(12, middle, `${unit} a ${word}`, upright);
  reading.textContent = `${amount(total(totals))} ${unit} in all.`;
}

function list(ranked, colours, label, unit) {
  const whole = total(ranked.map(([, group]) => group.value));
  document.getElementById("unit").textContent = unit;
  for (const head of document.querySelectorAll("#explore-section [aria-sort]")) {
    head.removeAttribute("aria-sort");
  }
  chosen.replaceChildren(...ranked.slice(0, 50).map(([name, group]) => {
    const row = document.createElement("tr");
    const head = document.createElement("th");
    const key = document.createElement("span");
    head.scope = "row";
    key.className = `key b${colours.get(name) ?? SERIES}`;
    head.append(key, label(name));
    row.append(head);
    const cells = [
      [amount(group.value), group.value],
      [share(group.value, whole), group.value],
      [amount(group.jobs), group.jobs],
      [share(group.failed, group.jobs), group.jobs ? group.failed / group.jobs : ""],
    ];
    for (const [text, value] of cells) {
      const cell = document.createElement("td");
      cell.className = "number";
      cell.dataset.value = value;
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  }));
}

function option(select, value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  select.append(made);
}

sums.measures.forEach((measure, at) => option(form.measure, at, measure.name));
NAMES.forEach((name, at) => {
  const found = sums.names[at].map((text, number) => [text || nameless(at), number]);
  found.sort(([one], [other]) => order.compare(one, other));
  for (const [text, number] of found) option(form[name], number, text);
  if (!sums.without.includes(name)) return;
  form[name].closest("label").hidden = true;
  form.by.querySelector(`[value=${name}]`).remove();
});
for (const input of [form.from, form.to]) {
  input.min = dateOf(FIRST);
  input.max = dateOf(LAST);
}

function zoom(first, last) {
  form.from.value = dateOf(first);
  form.to.value = dateOf(last);
  choose();
}

// Values are read, and periods chosen, with a pointer or with keys.
let held = null;

function stepAt(event) {
  return document.elementFromPoint(event.clientX, event.clientY)?.closest?.("#chart .area");
}

function lastDayOf(step) {
  if (isDay(step)) return step.first;
  const [year, month] = step.name.split("-");
  return Date.UTC(year, month) / DAY_MS - 1;
}

function point(area) {
  if (area) reading.textContent = area.says;
  for (const other of chart.querySelectorAll(".area")) {
    const [one, two] = held && area
      ? [held.first, area.step.first].sort((a, b) => a - b)
      : [1, 0];
    const between = other.step.first >= one && other.step.first <= two;
    other.classList.toggle("held", other === area || between);
  }
}

chart.addEventListener("pointerdown", (event) => {
  held = stepAt(event)?.step ?? null;
  point(stepAt(event));
});
chart.addEventListener("pointermove", (event) => point(stepAt(event)));
chart.addEventListener("keydown", (event) => {
  const areas = [...chart.querySelectorAll(".area")];
  const at = areas.findIndex((area) => area.classList.contains("held"));
  const last = areas.length - 1;
  const ways = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last };
  const next = ways[event.key];
  if (next === undefined) return;
  event.preventDefault();
  point(areas[Math.min(Math.max(next, 0), last)]);
});
addEventListener("pointerup", (event) => {
  const area = stepAt(event);
  if (held && area && area.step !== held) {
    const [first, last] = [held, area.step].sort((one, other) => one.first - other.first);
    zoom(first.first, Math.min(lastDayOf(last), LAST));
  }
  held = null;
});
form.addEventListener("input", choose);
form.addEventListener("reset", () => setTimeout(() => zoom(FIRST, LAST)));
zoom(FIRST, LAST);
for (const id of ["explore-section", "explore-link"]) document.getElementById(id).hidden = false;
