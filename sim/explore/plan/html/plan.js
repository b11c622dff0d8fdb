(() => {
  "use strict";
  const pointed = document.getElementById("pointed");
  for (const dot of document.querySelectorAll(".dot")) {
    const show = () => { pointed.textContent = dot.dataset.words; };
    for (const event of ["mouseenter", "focus", "click"]) dot.addEventListener(event, show);
  }
  for (const table of document.querySelectorAll(".sortable table")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const value = (row) => row.cells[column].querySelector("data");
      if (![...body.rows].every(value)) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent || "rank";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sign = down ? -1 : 1;
        const rows = [...body.rows].sort((a, b) => sign * (value(a).value - value(b).value));
        body.append(...rows);
      });
    });
  }
})();
