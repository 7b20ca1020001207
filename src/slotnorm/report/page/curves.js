// Curves: drawn to the size they have on the screen, named at their ends, read out at the nearest point.
const without = document.getElementById("without-failed");

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = `600 11px ${getComputedStyle(document.body).fontFamily}`;
const widthOf = (text) => ruler.measureText(text).width;

const MOST_TICKS = 7; // up: at least half as many round numbers, with room for their text in the lowest panel

class Plot {
  constructor(holder) {
    this.holder = holder;
    this.panel = data.panels[holder.dataset.panel];
    this.readout = holder.parentElement.querySelector(".readout");
    this.current = -1;
    this.svg = null; // until it comes near the window
  }

  get shown() {
    return without && without.checked && this.panel.kept ? this.panel.kept : this.panel.all;
  }

  get isPath() {
    return Boolean(this.shown.across_limits);
  }

  draw() {
    // drawn in units of a sixteenth of the root's font, so that text keeps its size whatever the panel's
    const unit = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
    this.drawnFor = this.holder.clientWidth;
    this.width = Math.max(240, Math.round((this.drawnFor || 360 * unit) / unit));
    this.height = Math.round(Math.min(280, Math.max(210, 0.62 * this.width)));
    const longest = Math.max(0, ...this.shown.curves.map((curve) => widthOf(this.label(curve.norm))));
    const numbers = this.shown.curves.length ? ticks(...this.shown.limits, MOST_TICKS).map(([, text]) => widthOf(text)) : [];
    this.box = { left: Math.max(42, 12 + Math.max(0, ...numbers)), right: this.width - 14 - longest, top: 12, bottom: this.height - 36 };
    const label = `${this.panel.title}. Left and right arrow keys read the values.`;
    this.svg = shape("svg", {
      viewBox: `0 0 ${this.width} ${this.height}`, tabindex: "0", role: "img", "aria-label": label, class: "drawing",
    });
    if (this.shown.curves.length) this.fillIn();
    else this.svg.append(shape("text", { x: this.width / 2, y: this.height / 2, text: "No run is left." }));
    this.holder.replaceChildren(this.svg);
    this.listen();
    this.hide();
  }

  fillIn() {
    const clip = `${this.holder.dataset.panel}-clip`;
    const { left, right, top, bottom } = this.box;
    const frame = { x: left, y: top - 4, width: right - left + 4, height: bottom - top + 8 };
    this.svg.append(shape("clipPath", { id: clip }, shape("rect", frame)));
    this.axes();
    const group = shape("g", { "clip-path": `url(#${clip})` });
    for (const curve of this.shown.curves) group.append(this.curve(curve));
    this.cross = this.isPath
      ? shape("path", { class: "cross", fill: "none", d: "M0 0" })
      : shape("line", { class: "cross", y1: top, y2: bottom, x1: 0, x2: 0 });
    this.svg.append(group, ...this.labels(), this.cross);
  }

  label(norm) {
    const { label } = data.looks[norm];
    return label.length > 16 ? `${label.slice(0, 15)}…` : label;
  }

  x(value) {
    const { left, right } = this.box;
    let share;
    if (this.isPath) {
      const [low, high] = this.shown.across_limits;
      share = (value - low) / (high - low);
    } else {
      const { points, even } = this.panel;
      const [first, last] = even ? [0, points.length - 1] : [points[0], points[points.length - 1]];
      share = last > first ? ((even ? points.indexOf(value) : value) - first) / (last - first) : 0.5;
    }
    return left + 6 + share * (right - left - 12);
  }

  y(value) {
    const [low, high] = this.shown.limits;
    return this.box.top + ((high - value) / (high - low)) * (this.box.bottom - this.box.top);
  }

  axes() {
    const { left, right, top, bottom } = this.box;
    for (const [value, text] of ticks(...this.shown.limits, MOST_TICKS)) {
      const y = this.y(value);
      this.svg.append(shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
      this.svg.append(shape("text", { class: "left", x: left - 6, y: y + 3.5, text }));
    }
    const across = this.isPath ? ticks(...this.shown.across_limits, 4) : this.numbers();
    for (const [value, text] of across) {
      const x = this.x(value);
      if (this.isPath) this.svg.append(shape("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }));
      this.svg.append(shape("text", { x, y: bottom + 14, text }));
    }
    this.svg.append(shape("text", { x: (left + right) / 2, y: this.height - 6, text: this.panel.axis }));
    const { trained, note, points } = this.panel;
    if (trained === null || trained < points[0] || trained > points[points.length - 1]) return;
    const x = this.x(trained);
    this.svg.append(shape("line", { class: "trained", x1: x, x2: x, y1: top, y2: bottom }));
    this.svg.append(shape("text", { class: "note", x: x + 4, y: top + 4, text: note }));
  }

  numbers() {
    const { points, even } = this.panel;
    const room = Math.max(3, Math.floor((this.box.right - this.box.left) / 26));
    const every = even ? 1 : Math.max(1, Math.ceil((points[points.length - 1] - points[0] + 1) / room));
    return points.filter((point) => even || points.length < 3 || (point - points[0]) % every === 0).map((p) => [p, p]);
  }

  place(curve, index) {
    const value = curve.median[index];
    const across = curve.across ? curve.across[index] : curve.at[index];
    return value === null || across === null ? null : [this.x(across), this.y(value)];
  }

  line(across, values) {
    let pen = "M";
    let path = "";
    values.forEach((value, index) => {
      const known = value !== null && across[index] !== null;
      if (known) path += `${pen}${this.x(across[index]).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = known ? "L" : "M";
    });
    return path || "M0 0";
  }

  curve(curve) {
    const look = data.looks[curve.norm];
    const group = shape("g", { class: look.class });
    const many = (curve.runs || []).length > 12 ? "run many" : "run";
    (curve.runs || []).forEach((values, run) => {
      const across = curve.across_runs ? curve.across_runs[run] : curve.at;
      group.append(shape("path", { class: many, d: this.line(across, values) }));
    });
    const strong = look.dashed ? "line dashed" : "line";
    group.append(shape("path", { class: strong, d: this.line(curve.across || curve.at, curve.median) }));
    curve.at.forEach((point, index) => {
      const spot = this.place(curve, index);
      if (!spot || (this.isPath && !this.panel.marked.includes(point))) return;
      const hollow = this.isPath && point === this.panel.marked[0];
      const d = `M${spot[0].toFixed(1)} ${spot[1].toFixed(1)}${look.marker}`;
      group.append(shape("path", { class: hollow ? "mark hollow" : "mark", d }));
    });
    return group;
  }

  // each curve's name at its end; names that would lie upon each other are moved apart and tied to their ends
  labels() {
    const { top, bottom, right } = this.box;
    const ends = this.shown.curves
      .map((curve) => {
        const last = curve.median.findLastIndex((_, index) => this.place(curve, index));
        return last < 0 ? null : { curve, spot: this.place(curve, last) };
      })
      .filter((end) => end)
      .sort((a, b) => a.spot[1] - b.spot[1]);
    const gap = 12.5;
    for (const end of ends) end.y = Math.min(bottom, Math.max(top, end.spot[1]));
    for (let index = 1; index < ends.length; index += 1) ends[index].y = Math.max(ends[index].y, ends[index - 1].y + gap);
    const over = ends.length ? ends[ends.length - 1].y - bottom : 0;
    for (let index = ends.length - 1, most = bottom; over > 0 && index >= 0; index -= 1, most -= gap) {
      ends[index].y = Math.min(ends[index].y, most);
    }
    return ends.map(({ curve, spot, y }) => {
      const x = (this.isPath ? right : spot[0]) + 8;
      const tie = `M${(spot[0] + 4).toFixed(1)} ${spot[1].toFixed(1)}L${(x - 1).toFixed(1)} ${y.toFixed(1)}`;
      const moved = this.isPath || Math.abs(y - spot[1]) > 4;
      return shape(
        "g", { class: data.looks[curve.norm].class }, moved && shape("path", { class: "tie", d: tie }),
        shape("text", { class: "name", x: x + 1, y: y + 3.8, text: this.label(curve.norm) }),
      );
    });
  }

  words(curve, index) {
    const at = curve.at.indexOf(this.panel.points[index]);
    if (at < 0) return "–";
    const { decimals } = this.panel;
    if (curve.across) return `F-ARI ${written(curve.median[at])}, ARI ${written(curve.across[at])}`;
    const median = written(curve.median[at], decimals);
    if (!curve.runs || curve.low[at] === null) return median;
    return `${median} (${written(curve.low[at], decimals)} to ${written(curve.high[at], decimals)})`;
  }

  spots(index) {
    const point = this.panel.points[index];
    return this.shown.curves
      .map((curve) => (curve.at.includes(point) ? this.place(curve, curve.at.indexOf(point)) : null))
      .filter((spot) => spot);
  }

  read(index) {
    if (index === this.current || !this.cross) return;
    this.current = index;
    if (this.isPath) {
      const ring = ([x, y]) => `M${x - 7} ${y}a7 7 0 1 0 14 0a7 7 0 1 0-14 0z`;
      this.cross.setAttribute("d", this.spots(index).map(ring).join("") || "M0 0");
    } else {
      const x = this.x(this.panel.points[index]);
      this.cross.setAttribute("x1", x);
      this.cross.setAttribute("x2", x);
    }
    this.svg.classList.add("read");
    const lines = this.shown.curves.map((curve) => {
      const { label, class: own } = data.looks[curve.norm];
      return make("span", { class: own, text: `${label} ${this.words(curve, index)}` });
    });
    const head = make("b", { text: this.panel.name.replace("{}", this.panel.points[index]) });
    this.readout.replaceChildren(head, ...lines);
    this.readout.hidden = false;
    // below the panel, where it hides no curve; above it where the window ends
    const below = this.svg.getBoundingClientRect().bottom + this.readout.offsetHeight;
    this.readout.classList.toggle("above", below > window.innerHeight);
  }

  hide() {
    this.current = -1;
    this.svg.classList.remove("read");
    this.readout.hidden = true;
  }

  nearest(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const distance = (index) => {
      if (!this.isPath) return Math.abs(this.x(this.panel.points[index]) - x);
      return Math.min(...this.spots(index).map((spot) => Math.hypot(spot[0] - x, spot[1] - y)));
    };
    let best = 0;
    this.panel.points.forEach((_, index) => {
      if (distance(index) < distance(best)) best = index;
    });
    this.read(best);
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.nearest(event));
    this.svg.addEventListener("pointerdown", (event) => this.nearest(event));
    this.svg.addEventListener("pointerleave", () => this.hide());
    this.svg.addEventListener("blur", () => this.hide());
    this.svg.addEventListener("keydown", (event) => {
      const last = this.panel.points.length - 1;
      const { current } = this;
      const moves = { ArrowLeft: Math.max(0, current - 1), ArrowRight: Math.min(last, current + 1), Home: 0, End: last };
      if (event.key === "Escape") this.hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.read(moves[event.key]);
    });
  }

  table() {
    const { curves } = this.shown;
    const head = ["", ...curves.map((curve) => data.looks[curve.norm].label)];
    const rows = this.panel.points.map((point, index) =>
      make(
        "tr", {}, make("th", { scope: "row", text: this.panel.name.replace("{}", point) }),
        ...curves.map((curve) => make("td", { text: this.words(curve, index) })),
      ),
    );
    const top = make("tr", {}, ...head.map((text) => make(text ? "th" : "td", text ? { scope: "col", text } : {})));
    const caption = make("caption", { text: this.panel.title });
    const table = make("table", {}, caption, make("thead", {}, top), make("tbody", {}, ...rows));
    const label = `Values: ${this.panel.title}`;
    return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, table);
  }
}

// About `most` round numbers from low to high, with as many decimals as they need.
const ticks = (low, high, most) => {
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9); at += 1) found.push(at * step);
  const close = (value, decimals) => Math.abs(value - Number(value.toFixed(decimals))) < 1e-9 * Math.max(1, Math.abs(value));
  let decimals = step < 1 ? 1 : 0;
  while (decimals < 12 && !found.every((value) => close(value, decimals))) decimals += 1;
  return found.map((value) => [value, written(value, decimals)]);
};

// A panel is drawn when it comes near the window, or to be printed.
const plots = new Map();
const watched = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) drawOnce(plots.get(target.dataset.panel));
  },
  { rootMargin: "800px" },
);
const drawOnce = (plot) => {
  watched.unobserve(plot.holder);
  if (!plot.svg) plot.draw();
};
const drawAgain = (wanted) => {
  for (const plot of plots.values()) {
    if (!plot.svg || !wanted(plot)) continue;
    plot.svg = null;
    watched.observe(plot.holder);
  }
};
for (const holder of document.querySelectorAll(".plot")) {
  plots.set(holder.dataset.panel, new Plot(holder));
  watched.observe(holder);
}
// paper cannot be unfolded
const folded = [...document.querySelectorAll(".folded")];
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = folded.filter((study) => !study.open);
  for (const study of unfolded) study.open = true;
  plots.forEach(drawOnce);
});
addEventListener("afterprint", () => unfolded.forEach((study) => (study.open = false)));

const listValues = (details) => {
  const tables = details.dataset.panels.split(" ").map((name) => plots.get(name).table());
  details.replaceChildren(details.querySelector("summary"), ...(details.open ? tables : []));
};
const listings = document.querySelectorAll("details.values");
for (const details of listings) details.addEventListener("toggle", () => listValues(details));
if (without) {
  without.addEventListener("change", () => {
    drawAgain((plot) => plot.panel.kept);
    for (const details of listings) listValues(details);
  });
}
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(drawAgain, 150, (plot) => plot.drawnFor !== plot.holder.clientWidth);
});
