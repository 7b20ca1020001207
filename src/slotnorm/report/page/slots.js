// Into the slots: at the training number of slots and at three times it, one normalization at a time.
const choices = (holder, name, legend, labels, chosen, choose) => {
  const radios = labels.map((text, place) => {
    const radio = make("input", { type: "radio", name, value: place, autocomplete: "off", checked: place === chosen });
    radio.addEventListener("change", () => choose(place));
    return make("label", {}, radio, make("span", { text }));
  });
  holder.append(make("fieldset", { class: "choices" }, make("legend", { text: legend }), ...radios));
};
const controls = (name, oneNorm) => {
  const content = studyShown();
  const holder = make("div", { class: "controls" });
  const labels = content.norms.map((norm) => data.looks[norm].label);
  if (oneNorm) choices(holder, `${name}-norm`, "Normalization", labels, view.norm, (norm) => show({ norm }));
  const slots = content.looked_into.map((k) => `${k} slots${k === content.trained ? ", as in training" : ""}`);
  choices(holder, `${name}-slots`, "Slots", slots, view.deep, (deep) => show({ deep }));
  return holder;
};
// the choices of a part, made anew when the study changes, so that the focus stays where it is
const keepControls = (holder, name, oneNorm = true) => {
  const key = `${view.study}`;
  if (holder.dataset.study !== key) {
    holder.dataset.study = key;
    holder.replaceChildren(controls(name, oneNorm), make("div", { class: "inside" }));
  }
  holder.querySelectorAll(`[name=${name}-norm]`).forEach((radio, place) => (radio.checked = place === view.norm));
  holder.querySelectorAll(`[name=${name}-slots]`).forEach((radio, place) => (radio.checked = place === view.deep));
  return holder.querySelector(".inside");
};

// What is kept of the shown variant at the chosen number of slots: largest slots on the grid, and every slot's mask.
const lookInto = () => {
  const content = studyShown();
  const variant = sceneShown().variants[view.norm];
  const bytes = unpack(variant.masks);
  const [cells, pixels] = [content.grid[0] * content.grid[1], variant.size[0] * variant.size[1]];
  const before = content.looked_into.slice(0, view.deep).reduce((sum, k) => sum + k, 0);
  const slots = content.looked_into[view.deep];
  const start = cells * content.looked_into.length + pixels * before;
  const masks = Array.from({ length: slots }, (_, slot) => bytes.subarray(start + slot * pixels, start + (slot + 1) * pixels));
  const labels = bytes.subarray(cells * view.deep, cells * (view.deep + 1));
  const colors = variant.colors[view.deep].map((number) => rgb(sceneShown().palette[number]));
  return { slots, masks, labels, colors, size: variant.size, grid: content.grid };
};

const intoSlots = document.getElementById("into-slots");
if (intoSlots && data.studies.length) {
  let seen = null;
  let drawing = 0;
  const big = make("canvas", { class: "big", role: "img", width: 1, height: 1 });
  const words = make("p", { class: "quiet", "aria-live": "polite" });

  // the scene where a slot holds it, dark elsewhere; without an image the mask in the slot's colour
  const alone = (canvas, found, slot, image) => {
    const [height, width] = found.size;
    const mask = found.masks[slot];
    const veil = document.createElement("canvas");
    const color = found.colors[slot];
    pixelate(veil, height, width, (place) => {
      const share = mask[place] / LEVELS;
      return image ? [14, 15, 18, 255 * 0.94 * (1 - share)] : [...color, 255 * share];
    });
    canvas.width = image ? image.naturalWidth : width;
    canvas.height = image ? image.naturalHeight : height;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    if (image) context.drawImage(image, 0, 0);
    context.drawImage(veil, 0, 0, canvas.width, canvas.height);
  };
  const together = () => {
    const { masks, colors, size } = seen.found;
    pixelate(big, ...size, (place) => {
      const mixed = [0, 0, 0];
      masks.forEach((mask, slot) => mixed.forEach((_, channel) => (mixed[channel] += (mask[place] / LEVELS) * colors[slot][channel])));
      return [...mixed, 255];
    });
    big.setAttribute("aria-label", `${seen.label}: all ${seen.found.slots} slots together`);
  };
  const focus = (slot) => {
    for (const button of seen.buttons) button.classList.toggle("chosen", Number(button.dataset.slot) === slot);
    if (slot < 0) {
      together();
      words.textContent = seen.words;
      return;
    }
    alone(big, seen.found, slot, seen.image);
    const told = `Slot ${slot + 1} of ${seen.found.slots} holds ${percent(seen.shares[slot])} of the picture.`;
    big.setAttribute("aria-label", `${seen.label}: ${told}`);
    words.textContent = told;
  };
  big.addEventListener("pointermove", (event) => {
    if (!seen) return;
    const box = big.getBoundingClientRect();
    const [height, width] = seen.found.size;
    const row = Math.min(height - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * height)));
    const column = Math.min(width - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * width)));
    const shares = seen.found.masks.map((mask) => mask[row * width + column]);
    focus(shares.indexOf(Math.max(...shares)));
  });
  big.addEventListener("pointerleave", () => seen && focus(-1));

  const describe = (found, shares) => {
    const holding = shares.filter((share) => share >= 0.01).length;
    const known = /(\d+) visible/.exec(sceneShown().words);
    const needed = known ? ` The scene has ${known[1]} objects and a background.` : "";
    return `${holding} of ${found.slots} slots hold 1 % of the picture or more.${needed}`;
  };
  watchers.push(() => {
    const mine = (drawing += 1);
    const inside = keepControls(intoSlots, "into-slots");
    const found = lookInto();
    withPictures([sceneShown().input], ([image]) => {
      if (mine !== drawing) return;
      const shares = found.masks.map((mask) => mask.reduce((sum, value) => sum + value, 0) / (LEVELS * mask.length));
      const label = data.looks[studyShown().norms[view.norm]].label;
      const buttons = found.masks.map((_, slot) => {
        const canvas = make("canvas", { "aria-hidden": "true" });
        const name = `Slot ${slot + 1} of ${found.slots}: ${percent(shares[slot])} of the picture`;
        const button = make("button", { type: "button", "aria-label": name, "data-slot": slot }, canvas, make("span", { text: percent(shares[slot]) }));
        button.style.setProperty("--slot", `rgb(${found.colors[slot].join(" ")})`);
        for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, () => focus(slot));
        for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => focus(-1));
        alone(canvas, found, slot, image);
        return button;
      });
      seen = { found, image, shares, label, buttons, words: describe(found, shares) };
      const grid = make("div", { class: "slots", role: "group", "aria-label": `The ${found.slots} slots of ${label}` }, ...buttons);
      grid.style.setProperty("--row", Math.ceil(found.slots / 2));
      inside.replaceChildren(make("figure", { class: "large" }, big, make("figcaption", {}, words)), grid);
      focus(-1);
      intoSlots.dataset.shown = `${view.norm} ${found.slots} ${view.scene + 1}`;
    });
  });
}

// Reconstructions of the same scene.
const intoReconstruction = document.getElementById("into-reconstruction");
if (intoReconstruction && data.studies.length) {
  let drawing = 0;
  watchers.push(() => {
    const mine = (drawing += 1);
    const content = studyShown();
    const scene = sceneShown();
    const inside = keepControls(intoReconstruction, "into-reconstruction", false);
    const slots = content.looked_into[view.deep];
    const jobs = content.norms.map((norm, place) => {
      const row = content.reconstructed[place].indexOf(slots);
      return { norm, place, row, picture: row < 0 ? 0 : scene.variants[place].reconstruction };
    });
    withPictures([scene.input, ...jobs.map((job) => job.picture)], ([original, ...images]) => {
      if (mine !== drawing) return;
      const tile = (label, image, row, rows, own, caption) => {
        const canvas = make("canvas", { role: "img", "aria-label": label, width: 1, height: 1 });
        if (image) paint(canvas, image, row, rows);
        return make("figure", { class: own }, canvas, make("figcaption", {}, make("b", { text: label }), make("small", { text: caption })));
      };
      const rebuilt = jobs.filter((job) => job.picture).map(({ norm, place, row }) => {
        const error = (scene.variants[place].here.l2 || [])[content.slots.indexOf(slots)];
        const caption = error === null || error === undefined ? "" : `error here ${written(error, 4)}`;
        const { label, class: own } = data.looks[norm];
        return tile(`${label}, rebuilt`, images[place], row, content.reconstructed[place].length, `variant ${own}`, caption);
      });
      const none = make("p", { class: "lacks", text: `${content.title} has no reconstruction that can be shown as a picture.` });
      const all = original ? [tile("Scene", original, 0, 1, "", "")] : [];
      inside.replaceChildren(...(rebuilt.length ? [make("div", { class: "row" }, ...all, ...rebuilt)] : [none]));
    });
  });
}
