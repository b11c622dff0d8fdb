(() => {
  "use strict";
  const UNITS = 100000, box = document.querySelector(".timeline");
  if (!box) return;
  const rows = [...document.querySelectorAll("svg[data-row]")], axes = [...document.querySelectorAll(".axis")];
  const labels = [...document.querySelectorAll("[data-x]")];
  let from = 0, to = UNITS;

  const ticks = (axis) => {
    const start = +axis.dataset.from, length = +axis.dataset.length;
    const low = start + length * from / UNITS, high = start + length * to / UNITS;
    const rough = (high - low) * 70 / Math.max(200, axis.clientWidth), decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * decade).find((step) => step >= rough);
    const [unit, name] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([unit]) => step >= 0.1 * unit) || [1e-6, "µs"];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    axis.classList.add("drawn");
    axis.replaceChildren();
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high; n++) {
      const at = (n * step - low) / (high - low);
      if (at > 0.9) break;
      const tick = document.createElement("span");
      tick.style.left = 100 * at + "%";
      tick.textContent = (n * step / unit + 0).toFixed(digits) + " " + name;
      axis.append(tick);
    }
  };

  const draw = () => {
    for (const row of rows) row.setAttribute("viewBox", `${from} 0 ${to - from} ${row.dataset.row}`);
    for (const label of labels) {
      const begin = +label.dataset.x, wide = +(label.dataset.w || 0);
      const left = wide ? Math.max(begin, from) : begin, right = wide ? Math.min(begin + wide, to) : begin;
      label.hidden = right < Math.max(left, from) || left > to;
      label.style.left = 100 * (left - from) / (to - from) + "%";
      if (wide) label.style.width = 100 * Math.max(0, right - left) / (to - from) + "%";
    }
    axes.forEach(ticks);
  };

  const show = (low, high) => {
    const width = Math.min(UNITS, Math.max(5, high - low));
    from = Math.min(UNITS - width, Math.max(0, low));
    to = from + width;
    draw();
  };

  const zoom = (factor, at = 0.5) => {
    const middle = from + (to - from) * at, width = (to - from) * factor;
    show(middle - width * at, middle + width * (1 - at));
  };
  const pan = (share) => show(from + share * (to - from), to + share * (to - from));

  const bar = document.createElement("div"), said = document.createElement("output");
  bar.className = "controls";
  const button = (text, label, does) => {
    const it = document.createElement("button");
    it.type = "button";
    it.textContent = text;
    it.setAttribute("aria-label", label);
    it.addEventListener("click", does);
    bar.append(it);
  };
  button("+", "zoom in", () => zoom(0.5));
  button("−", "zoom out", () => zoom(2));
  button("←", "earlier", () => pan(-0.3));
  button("→", "later", () => pan(0.3));
  button("whole step", "show the whole step", () => show(0, UNITS));
  const hint = "Zoom: buttons, Ctrl + wheel, double click. Move: drag.";
  said.textContent = hint;
  bar.append(said);
  box.prepend(bar);

  addEventListener("resize", draw);
  draw();

  const place = (event, strip) => {
    const place = strip.getBoundingClientRect();
    return (event.clientX - place.left) / place.width;
  };
  for (const row of rows) {
    const strip = row.parentElement;
    let held = null;
    strip.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event, strip));
    }, { passive: false });
    strip.addEventListener("dblclick", (event) => zoom(0.4, place(event, strip)));
    strip.addEventListener("pointerdown", (event) => {
      if (event.button === 0) held = [place(event, strip), from, to];
    });
    strip.addEventListener("pointermove", (event) => {
      const title = event.target.querySelector && event.target.querySelector(":scope > title");
      said.textContent = event.target.tagName === "path" && title ? title.textContent : hint;
      if (!held) return;
      strip.setPointerCapture(event.pointerId);
      const by = (held[0] - place(event, strip)) * (held[2] - held[1]);
      show(held[1] + by, held[2] + by);
    });
    for (const end of ["pointerup", "pointercancel"]) strip.addEventListener(end, () => { held = null; });
  }
})();
