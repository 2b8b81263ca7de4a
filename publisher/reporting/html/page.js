"use strict";
// Sorts a table by the column whose heading is pressed: up, then down. Buttons, so that keys press them too.
const said = document.getElementById("sorted");
const order = new Intl.Collator(undefined, { numeric: true });
function compare(first, second, numbers) {
  return numbers ? Number(first) - Number(second) : order.compare(first, second);
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const at = heading.cellIndex;
    const body = heading.closest("table").tBodies[0];
    const numbers = heading.classList.contains("number");
    const now = heading.getAttribute("aria-sort");
    const up = now ? now === "descending" : !numbers;
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = Array.from(body.rows, (row) => [row.cells[at].dataset.value ?? row.cells[at].textContent, row]);
    // What is not known comes last, whichever way.
    rows.sort(([first], [second]) => (first === "") - (second === "") || (up ? 1 : -1) * compare(first, second, numbers));
    body.append(...rows.map((row) => row[1]));
    said.textContent = `${heading.closest("table").caption.textContent}: sorted by ${button.textContent}, ${up ? "ascending" : "descending"}`;
  });
}

// Draws what is chosen of the period, from the sums in the page.
const sums = JSON.parse(document.getElementById("sums").textContent);
const DAY_MS = 86400000, SERIES = 6, MOST_DAYS = 92;
const LEFT = 66, TOP = 10, WIDTH = matchMedia("(max-width: 40rem)").matches ? 430 : 900, PLOT = 240, BELOW = 46;
const form = document.getElementById("choose"), chart = document.getElementById("chart");
const reading = document.getElementById("reading"), chosen = document.getElementById("chosen");
const NAMES = ["vo", "queue", "user", "project"];
const [FIRST, LAST] = sums.days;
chart.setAttribute("viewBox", `0 0 ${WIDTH} ${TOP + PLOT + BELOW}`);
const dateOf = (day) => new Date(day * DAY_MS).toISOString().slice(0, 10);
const dayOf = (text) => Math.round(Date.parse(text) / DAY_MS);
const amount = (number) => Math.abs(number) >= 100 || Number.isInteger(number)
  ? number.toLocaleString("en-US", { maximumFractionDigits: 0 })
  : number >= 0.1 ? number.toFixed(1) : "< 0.1";
const share = (part, whole) => whole ? `${(part / whole * 100).toFixed(1)} %` : "–";

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
  const by = NAMES.indexOf(form.by.value), measure = sums.measures[form.measure.value];
  const wanted = NAMES.map((name) => form[name].value === "" ? -1 : Number(form[name].value));
  const from = Math.max(dayOf(form.from.value) || FIRST, FIRST), to = Math.min(dayOf(form.to.value) || LAST, LAST);
  const byDay = !sums.months && to - from < MOST_DAYS;
  const stepOf = (day) => byDay ? dateOf(day) : dateOf(day).slice(0, 7);
  const steps = new Map();
  for (let day = from; day <= to; day++) if (!steps.has(stepOf(day))) steps.set(stepOf(day), { name: stepOf(day), first: day, parts: new Map() });
  const groups = new Map();
  for (const [day, ...rest] of sums.cells) {
    const step = steps.get(stepOf(day));
    if (!step || (byDay && (day < from || day > to)) || wanted.some((name, at) => name >= 0 && rest[at] !== name)) continue;
    const values = rest.slice(NAMES.length), value = values[measure.at] / measure.divisor;
    const group = groups.get(rest[by]) ?? { value: 0, jobs: 0, failed: 0 };
    group.value += value; group.jobs += values[0]; group.failed += values[1];
    groups.set(rest[by], group);
    step.parts.set(rest[by], (step.parts.get(rest[by]) ?? 0) + value);
  }
  const ranked = [...groups].sort((one, other) => other[1].value - one[1].value);
  const names = sums.names[by];
  const colours = new Map(ranked.slice(0, SERIES).map(([name], at) => [name, at]));
  const label = (name) => names[name] || "(none)";
  show([...steps.values()], ranked, colours, label, measure.name, byDay ? "day" : "month");
  list(ranked, colours, label, measure.name);
}
function show(steps, ranked, colours, label, title, word) {
  const unit = title.replace(/^[A-Z](?=[a-z])/, (first) => first.toLowerCase()); // GPU hours stay so
  chart.replaceChildren();
  const totals = steps.map((step) => [...step.parts.values()].reduce((one, other) => one + other, 0));
  const tick = roundStep(Math.max(...totals, 0) / 4), top = Math.max(Math.ceil(Math.max(...totals, 0) / tick), 1) * tick;
  const place = (value) => TOP + PLOT - value / top * PLOT, width = (WIDTH - LEFT - 10) / steps.length;
  for (let at = 0; at <= top * 1.001; at += tick) {
    draw(chart, "line", { x1: LEFT, x2: WIDTH - 10, y1: place(at), y2: place(at) });
    draw(chart, "text", { x: LEFT - 6, y: place(at) + 4, "text-anchor": "end" }, amount(at));
  }
  const every = Math.ceil(steps.length / (WIDTH > 600 ? 9 : 5));
  const order = ranked.map(([name]) => name);
  steps.forEach((step, at) => {
    let below = 0;
    const said = [];
    for (const name of order) {
      const value = step.parts.get(name);
      if (!value) continue;
      draw(chart, "rect", {
        class: `s${colours.get(name) ?? SERIES}`, x: LEFT + (at + 0.06) * width, width: Math.max(width * 0.88, 0.5),
        y: place(below + value), height: place(below) - place(below + value),
      });
      below += value;
      if (said.length < 8) said.push(`${label(name)} ${amount(value)}`);
    }
    if (at % every === 0) draw(chart, "text", { x: LEFT + (at + 0.5) * width, y: TOP + PLOT + 17, "text-anchor": "middle" }, step.name.length > 7 ? step.name.slice(5) : step.name);
    const area = draw(chart, "rect", { class: "area", x: LEFT + at * width, y: TOP, width, height: PLOT });
    area.step = step;
    area.says = `${step.name}: ${amount(below)} ${unit}${said.length ? ` (${said.join(", ")})` : ""}`;
    draw(area, "title", {}, area.says);
  });
  draw(chart, "text", { class: "axis", x: (LEFT + WIDTH) / 2, y: TOP + PLOT + BELOW - 8, "text-anchor": "middle" }, `${word} in which jobs ended, UTC`);
  draw(chart, "text", { class: "axis", x: 12, y: TOP + PLOT / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${TOP + PLOT / 2})` }, `${unit} a ${word}`);
  reading.textContent = `${amount(totals.reduce((one, other) => one + other, 0))} ${unit} in all.`;
}
function list(ranked, colours, label, unit) {
  const whole = ranked.reduce((sum, [, group]) => sum + group.value, 0);
  document.getElementById("unit").textContent = unit;
  for (const head of document.querySelectorAll("#explore-section [aria-sort]")) head.removeAttribute("aria-sort");
  chosen.replaceChildren(...ranked.slice(0, 50).map(([name, group]) => {
    const row = document.createElement("tr"), head = document.createElement("th"), key = document.createElement("span");
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
  const found = sums.names[at].map((text, number) => [text || "(none)", number]);
  for (const [text, number] of found.sort(([one], [other]) => order.compare(one, other))) option(form[name], number, text);
});
for (const input of [form.from, form.to]) [input.min, input.max] = [dateOf(FIRST), dateOf(LAST)];
function zoom(first, last) {
  [form.from.value, form.to.value] = [dateOf(first), dateOf(last)];
  choose();
}
const stepAt = (event) => document.elementFromPoint(event.clientX, event.clientY)?.closest?.("#chart .area");
let held = null;
function point(area) {
  if (area) reading.textContent = area.says;
  for (const other of chart.querySelectorAll(".area")) {
    const [one, two] = held && area ? [held.first, area.step.first].sort((a, b) => a - b) : [1, 0];
    other.classList.toggle("held", other === area || (other.step.first >= one && other.step.first <= two));
  }
}
chart.addEventListener("pointerdown", (event) => {
  held = stepAt(event)?.step ?? null;
  point(stepAt(event));
});
chart.addEventListener("pointermove", (event) => point(stepAt(event)));
chart.addEventListener("keydown", (event) => {
  const areas = [...chart.querySelectorAll(".area")], at = areas.findIndex((area) => area.classList.contains("held"));
  const next = { ArrowRight: at + 1, ArrowLeft: at < 0 ? areas.length - 1 : at - 1, Home: 0, End: areas.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  point(areas[Math.min(Math.max(next, 0), areas.length - 1)]);
});
addEventListener("pointerup", (event) => {
  const area = stepAt(event);
  if (held && area && area.step !== held) {
    const [first, last] = [held, area.step].sort((one, other) => one.first - other.first);
    const next = last.name.length > 7 ? last.first : dayOf(`${last.name}-01`) + new Date(Date.UTC(last.name.slice(0, 4), last.name.slice(5), 0)).getUTCDate() - 1;
    zoom(first.first, Math.min(next, LAST));
  }
  held = null;
});
form.addEventListener("input", choose);
form.addEventListener("reset", () => setTimeout(() => zoom(FIRST, LAST)));
zoom(FIRST, LAST);
document.getElementById("explore-section").hidden = document.getElementById("explore-link").hidden = false;
