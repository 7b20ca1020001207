// F-ARI and ARI, seen: every pixel by the share of its pairs on which the truth and the model agree.
const intoScores = document.getElementById("into-scores");
if (intoScores && data.studies.length) {
  const RIGHT = [205, 219, 231];
  const WRONG = [196, 48, 32];
  const CHOSEN = [20, 20, 20];

  // pairs of the pixels that count: how many agree at each of them, and in all
  const agreement = (truth, slots, foreground) => {
    const counts = (place) => !foreground || truth[place] > 0;
    const [rows, columns, cells] = [new Map(), new Map(), new Map()];
    const add = (map, key) => map.set(key, (map.get(key) || 0) + 1);
    let total = 0;
    truth.forEach((object, place) => {
      if (!counts(place)) return;
      total += 1;
      add(rows, object);
      add(columns, slots[place]);
      add(cells, 256 * object + slots[place]);
    });
    const share = (place) => {
      const [object, slot] = [truth[place], slots[place]];
      const both = cells.get(256 * object + slot);
      return total < 2 ? 1 : (2 * both - 1 + total - rows.get(object) - columns.get(slot)) / (total - 1);
    };
    let sum = 0;
    truth.forEach((_, place) => (sum += counts(place) ? share(place) : 0));
    return { counts, share, mean: total ? sum / total : null };
  };
  const mixed = (wrong) => RIGHT.map((channel, place) => channel + (WRONG[place] - channel) * wrong);
  const NOTHING = [0, 0, 0, 0];

  const picture = (content, label, words, draw) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${label}: ${words}`, width: 1, height: 1 });
    draw(canvas);
    return make("figure", {}, canvas, make("figcaption", {}, make("b", { text: label }), make("span", { text: words })));
  };
  // all pixels by their share; with one chosen, the others by whether the pair agrees
  const measured = (content, label, score, truth, slots, foreground) => {
    const found = agreement(truth, slots, foreground);
    const asked = foreground ? "pixels of objects only" : "all pixels";
    const pairs = found.mean === null ? "no pixel counts" : `${asked}: ${(100 * found.mean).toFixed(1)} % of pairs agree`;
    const canvas = make("canvas", { role: "img", tabindex: "0", class: "pairs", width: 1, height: 1 });
    const words = make("span", { text: pairs });
    const value = score === null || score === undefined ? label : `${label} ${written(score, 2)}`;
    const [height, width] = content.grid;
    let chosen = -1;
    const draw = () => {
      pixelate(canvas, height, width, (place) => {
        if (!found.counts(place)) return NOTHING;
        if (chosen < 0) return [...mixed(Math.min(1, 2 * (1 - found.share(place)))), 255];
        if (place === chosen) return [...CHOSEN, 255];
        const agree = (truth[place] === truth[chosen]) === (slots[place] === slots[chosen]);
        return [...mixed(agree ? 0 : 1), 255];
      });
      const share = chosen < 0 ? "" : `this pixel: ${percent(found.share(chosen))} of its pairs agree`;
      words.textContent = chosen < 0 ? pairs : share;
      canvas.setAttribute("aria-label", `${value}. ${words.textContent}. Arrow keys choose a pixel.`);
    };
    const choose = (place) => {
      const next = place >= 0 && found.counts(place) ? place : -1;
      if (next === chosen) return;
      chosen = next;
      draw();
    };
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * height);
      const column = Math.floor(((event.clientX - box.left) / box.width) * width);
      choose(row >= 0 && row < height && column >= 0 && column < width ? row * width + column : -1);
    };
    canvas.addEventListener("pointermove", under);
    canvas.addEventListener("pointerdown", under);
    canvas.addEventListener("pointerleave", () => choose(-1));
    canvas.addEventListener("blur", () => choose(-1));
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
      if (event.key === "Escape") choose(-1);
      if (!(event.key in moves)) return;
      event.preventDefault();
      const size = height * width;
      let place = chosen < 0 ? Math.floor(size / 2) - moves[event.key] : chosen;
      for (let tries = 0; tries < size; tries += 1) {
        place = (place + moves[event.key] + size) % size;
        if (found.counts(place)) break;
      }
      choose(place);
    });
    draw();
    return make("figure", {}, canvas, make("figcaption", {}, make("b", { text: value }), words));
  };

  watchers.push(() => {
    const content = studyShown();
    const scene = sceneShown();
    const inside = keepControls(intoScores, "into-scores");
    if (!scene.labels) {
      const words = `The scenes of ${content.title} have no true masks, so neither score can be given or drawn.`;
      inside.replaceChildren(make("p", { class: "lacks", text: words }));
      return;
    }
    const found = lookInto();
    const truth = unpack(scene.labels);
    const { here } = scene.variants[view.norm];
    const at = content.slots.indexOf(found.slots);
    const palette = scene.palette.map(rgb);
    const label = data.looks[content.norms[view.norm]].label;
    const flat = (colors) => (canvas) => pixelate(canvas, ...content.grid, (place) => [...colors(place), 255]);
    inside.replaceChildren(
      make(
        "div", { class: "row" },
        picture(content, "The truth", "which pixels belong together", flat((place) => palette[truth[place]])),
        picture(content, label, `the slot that holds the most of each pixel, of ${found.slots}`, flat((place) => found.colors[found.labels[place]])),
        measured(content, "F-ARI", here.f_ari && here.f_ari[at], truth, found.labels, true),
        measured(content, "ARI", here.ari && here.ari[at], truth, found.labels, false),
      ),
    );
    intoScores.dataset.shown = `${view.norm} ${found.slots} ${view.scene + 1}`;
  });
}
