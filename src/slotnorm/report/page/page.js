"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// Curves: pointing at one, or the arrow keys on it, read out every variant's value at the nearest point.
for (const plot of document.querySelectorAll("svg.plot")) {
  const panel = data[plot.id];
  const cross = plot.querySelector(".cross");
  const readout = plot.parentElement.querySelector(".readout");
  let current = -1;

  // a line through all curves at one number; on paths, where both axes are scores, a ring on each
  const point = (index) => {
    if (panel.places) {
      cross.setAttribute("x1", panel.places[index]);
      cross.setAttribute("x2", panel.places[index]);
      return;
    }
    const spots = panel.curves.map((curve) => curve.spots[index]).filter((spot) => spot);
    cross.setAttribute("d", spots.map(([x, y]) => `M${x - 7} ${y}a7 7 0 1 0 14 0a7 7 0 1 0-14 0z`).join("") || "M0 0");
  };
  const distance = (index, x, y) => {
    if (panel.places) return Math.abs(panel.places[index] - x);
    const spots = panel.curves.map((curve) => curve.spots[index]).filter((spot) => spot);
    return Math.min(...spots.map((spot) => Math.hypot(spot[0] - x, spot[1] - y)));
  };
  const show = (index) => {
    if (index === current) return;
    current = index;
    point(index);
    plot.classList.add("read");
    const head = document.createElement("b");
    head.textContent = `${panel.name} ${panel.points[index]}`;
    const lines = panel.curves.map((curve) => {
      const line = document.createElement("span");
      line.className = curve.class;
      line.textContent = `${curve.label} ${curve.values[index]}`;
      return line;
    });
    readout.replaceChildren(head, ...lines);
    readout.hidden = false;
    // below the panel, where it hides no curve; above it where the window ends
    const below = plot.getBoundingClientRect().bottom + readout.offsetHeight;
    readout.classList.toggle("above", below > window.innerHeight);
  };
  const hide = () => {
    current = -1;
    plot.classList.remove("read");
    readout.hidden = true;
  };
  const nearest = (event) => {
    const box = plot.getBoundingClientRect();
    const scale = panel.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = 0;
    panel.points.forEach((_, index) => {
      if (distance(index, x, y) < distance(best, x, y)) best = index;
    });
    show(best);
  };
  plot.addEventListener("pointermove", nearest);
  plot.addEventListener("pointerdown", nearest);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const last = panel.points.length - 1;
    const moves = { ArrowLeft: Math.max(0, current - 1), ArrowRight: Math.min(last, current + 1), Home: 0, End: last };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}

// Sliders: a strip holds one variant's pictures of one scene for every K, one below the other.
const decoded = new Map();
const load = (address) => {
  if (!decoded.has(address)) {
    const image = new Image();
    image.src = address;
    decoded.set(address, image.decode().then(() => image));
  }
  return decoded.get(address);
};

for (const slider of document.querySelectorAll(".slider")) {
  const content = data[slider.id];
  const range = slider.querySelector("input[type=range]");
  const output = slider.querySelector("output");
  let drawing = 0;

  const paint = (canvas, image, row, rows) => {
    const height = image.naturalHeight / rows;
    canvas.width = image.naturalWidth;
    canvas.height = height;
    canvas.getContext("2d").drawImage(image, 0, row * height, canvas.width, height, 0, 0, canvas.width, height);
  };
  const jobs = (scene, index) => {
    const slots = content.slots[index];
    const list = [];
    const add = (canvas, address, row, rows, words) => {
      if (canvas) list.push({ canvas, address, row, rows, words: `${canvas.dataset.label}, ${words}` });
    };
    add(slider.querySelector("canvas.input"), scene.input, 0, 1, scene.words);
    add(slider.querySelector("canvas.truth"), scene.truth, 0, 1, scene.words);
    for (const figure of slider.querySelectorAll(".variant")) {
      const variant = Number(figure.dataset.variant);
      const strips = scene.variants[variant];
      const rebuilt = content.reconstructed[variant];
      add(figure.querySelector("canvas.segmentation"), strips.segmentation, index, content.slots.length, `${slots} slots`);
      const canvas = figure.querySelector("canvas.reconstruction");
      const row = rebuilt.indexOf(slots);
      if (canvas) canvas.classList.toggle("missing", row < 0);
      if (row >= 0) add(canvas, strips.reconstruction, row, rebuilt.length, `${slots} slots`);
      for (const score of figure.querySelectorAll(".score")) {
        score.textContent = content.scores[variant][score.dataset.metric][index];
      }
    }
    return list;
  };
  const update = async () => {
    const mine = ++drawing;
    const index = Number(range.value);
    const scene = content.scenes[Number(slider.querySelector("input[type=radio]:checked").value)];
    output.textContent = content.slots[index];
    range.setAttribute("aria-valuetext", `${content.slots[index]} slots`);
    const list = jobs(scene, index);
    const images = await Promise.all(list.map((job) => load(job.address)));
    if (mine !== drawing) return; // the slider has moved on
    list.forEach((job, place) => {
      paint(job.canvas, images[place], job.row, job.rows);
      job.canvas.setAttribute("aria-label", job.words);
    });
    slider.dataset.shown = `${content.slots[index]}`;
  };
  slider.addEventListener("input", update);
  update();
}
