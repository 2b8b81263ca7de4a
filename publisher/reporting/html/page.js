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
