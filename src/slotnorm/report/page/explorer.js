// The slider: one scene, every normalization, as many slots as it says.
const explorer = document.querySelector(".explorer:not(.without)");

if (explorer) {
  const range = explorer.querySelector("input[type=range]");
  const output = explorer.querySelector("output");
  const tiles = explorer.querySelector(".tiles");
  const strip = explorer.querySelector(".strip");
  const chooser = explorer.querySelector("select");
  const play = explorer.querySelector(".play");
  const trainedAt = explorer.querySelector(".trained-at");
  const about = explorer.querySelector(".about");
  const link = make("a", { text: "Link to this view" });
  const told = make("span");
  about.append(told, " ", link);
  let built = -1;
  let drawing = 0;
  let timer = 0;

  const tile = (kind, label, ...caption) =>
    make(
      "figure", { class: kind }, make("canvas", { class: kind, role: "img", "data-label": label, width: 1, height: 1 }),
      make("figcaption", {}, ...caption),
    );
  const bar = () => make("span", { class: "bar", "aria-hidden": "true" }, make("i"), make("u"));

  // the places of all pictures of a study
  const build = () => {
    const content = studyShown();
    const scene = content.scenes[0];
    const originals = [
      scene.input ? tile("input", "Scene", make("b", { text: "Scene" })) : make("p", { class: "quiet", text: "No image" }),
      scene.truth ? tile("truth", "True objects", make("b", { text: "True objects" })) : make("p", { class: "quiet", text: "No true masks" }),
    ];
    const variants = content.norms.map((norm, place) => {
      const look = data.looks[norm];
      const score = make("span", { class: "score" });
      const here = make("small", { class: "here" });
      const figure = tile("segmentation", look.label, make("b", { text: look.label }), bar(), score, here);
      figure.classList.add("variant", look.class);
      figure.dataset.variant = place;
      return figure;
    });
    tiles.replaceChildren(...originals, ...variants);
    range.max = content.slots.length - 1;
    const trained = content.slots.indexOf(content.trained);
    trainedAt.hidden = trained < 0;
    trainedAt.textContent = `trained: ${content.trained}`;
    trainedAt.style.setProperty("--at", content.slots.length > 1 ? trained / (content.slots.length - 1) : 0.5);
    strip.replaceChildren(...content.scenes.map(thumbnail));
    if (chooser) chooser.value = content.stem;
    built = view.study;
  };

  const thumbnail = (scene, place) => {
    const radio = make("input", {
      type: "radio", name: "explorer-scene", value: place, autocomplete: "off", "aria-label": `Scene ${place + 1}: ${scene.words}`,
    });
    radio.addEventListener("change", () => touched({ scene: place }));
    const original = scene.input || scene.truth;
    const picture = original ? make("img", { src: data.pictures[original], alt: "" }) : make("span", { class: "nothing", text: place + 1 });
    return make("label", { title: scene.words }, radio, picture);
  };

  const write = () => {
    const content = studyShown();
    const scene = sceneShown();
    const slots = content.slots[view.place];
    range.value = view.place;
    range.setAttribute("aria-valuetext", `${slots} slots`);
    output.textContent = slots;
    const chosen = strip.children[view.scene];
    chosen.firstChild.checked = true;
    strip.scrollLeft += Math.min(0, chosen.offsetLeft - strip.offsetLeft - strip.scrollLeft - 8);
    strip.scrollLeft += Math.max(0, chosen.offsetLeft - strip.offsetLeft + chosen.offsetWidth + 8 - strip.scrollLeft - strip.clientWidth);
    const trained = content.slots.indexOf(content.trained);
    for (const figure of tiles.querySelectorAll(".variant")) {
      const place = Number(figure.dataset.variant);
      const means = content.means[place].f_ari || [];
      const here = (scene.variants[place].here.f_ari || [])[view.place];
      const known = means[view.place] !== null && means[view.place] !== undefined;
      figure.querySelector(".score").textContent = known ? `F-ARI ${written(means[view.place], 2)}` : "";
      figure.querySelector(".here").textContent = here === null || here === undefined ? "" : `here ${written(here, 2)}`;
      const line = figure.querySelector(".bar");
      line.hidden = !known;
      line.style.setProperty("--now", Math.max(0, means[view.place] || 0));
      line.style.setProperty("--then", Math.max(0, means[trained] || 0));
    }
    const fewer = content.fewer ? ` Only ${content.scenes.length} scenes, so that the page stays small.` : "";
    const mark = trained >= 0 ? ` The notch in a bar is F-ARI with ${content.trained} slots.` : "";
    const scored = content.means.some(({ f_ari }) => f_ari && f_ari.some((mean) => mean !== null));
    const scores = scored ? ` F-ARI is over all such scenes, “here” this picture's.${mark}` : "";
    told.textContent =
      `Study ${content.title}: scenes with ${content.words}. A slot has the colour of what it covers, never that of an object in the scene.` +
      `${scores}${fewer}`;
    link.href = address();
  };
  const address = () => `#${encodeURIComponent(studyShown().stem)}&k=${studyShown().slots[view.place]}&scene=${view.scene + 1}`;

  const update = () => {
    if (built !== view.study) build();
    write();
    const mine = (drawing += 1);
    const content = studyShown();
    const scene = sceneShown();
    const slots = content.slots[view.place];
    const jobs = [...tiles.querySelectorAll("figure")].map((figure) => {
      const canvas = figure.querySelector("canvas");
      if (figure.classList.contains("input")) return [canvas, scene.input, 0, 1, scene.words];
      if (figure.classList.contains("truth")) return [canvas, scene.truth, 0, 1, scene.words];
      const { segmentation } = scene.variants[Number(figure.dataset.variant)];
      return [canvas, segmentation, view.place, content.slots.length, `segments with ${slots} slots`];
    });
    withPictures(jobs.map((job) => job[1]), (images) => {
      if (mine !== drawing) return; // the slider has moved on
      jobs.forEach(([canvas, , row, rows, words], place) => {
        paint(canvas, images[place], row, rows);
        canvas.setAttribute("aria-label", `${canvas.dataset.label}: ${words}`);
      });
      explorer.dataset.shown = `${content.stem} ${slots} ${view.scene + 1}`;
    });
  };
  watchers.push(update);

  const stop = () => {
    clearTimeout(timer);
    timer = 0;
    play.textContent = "Play";
    delete explorer.dataset.playing;
  };
  // from the training number of slots up to three times it, in four seconds or less
  const start = () => {
    const content = studyShown();
    const from = Math.max(0, content.slots.indexOf(content.trained));
    const to = content.start > from ? content.start : content.slots.length - 1;
    const pause = Math.min(450, Math.max(120, 4000 / Math.max(1, to - from)));
    const step = (place) => {
      show({ place });
      if (place >= to) return stop();
      timer = setTimeout(step, pause, place + 1);
    };
    play.textContent = "Stop";
    explorer.dataset.playing = "yes";
    timer = setTimeout(step, 0, from);
  };
  // paper shows where the play would have ended, whenever it is printed
  addEventListener("beforeprint", () => {
    if (!timer) return;
    stop();
    show({ place: studyShown().start });
  });
  // a reader's own choice: it ends the play and stands in the address
  const touched = (change) => {
    stop();
    show(change);
    history.replaceState(null, "", address());
  };

  range.addEventListener("input", () => touched({ place: Number(range.value) }));
  play.addEventListener("click", () => (timer ? stop() : start()));
  if (chooser) {
    chooser.addEventListener("change", () => {
      touched(openStudy(data.studies.findIndex((study) => study.stem === chooser.value)));
    });
  }

  // dragging across the pictures moves the slider, too
  let drag = null;
  tiles.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, place: view.place };
  });
  tiles.addEventListener("pointermove", (event) => {
    if (!drag || !event.buttons) return;
    const moved = Math.round((event.clientX - drag.x) / 22);
    const place = Math.min(studyShown().slots.length - 1, Math.max(0, drag.place + moved));
    if (place !== view.place) touched({ place });
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) tiles.addEventListener(end, () => (drag = null));

  // #toy&k=15&scene=3
  const follow = () => {
    const [name, ...rest] = location.hash.slice(1).split("&");
    let stem = name;
    try {
      stem = decodeURIComponent(name);
    } catch {
      return false; // not an address of ours
    }
    const study = data.studies.findIndex((content) => content.stem === stem);
    if (study < 0 || (!rest.length && document.getElementById(stem))) return false;
    const wanted = Object.fromEntries(rest.map((part) => part.split("=")));
    const change = openStudy(study);
    const { slots, scenes } = data.studies[study];
    const asked = Number(wanted.k);
    if (wanted.k && Number.isFinite(asked)) {
      change.place = slots.reduce((best, k, place) => (Math.abs(k - asked) < Math.abs(slots[best] - asked) ? place : best), 0);
    }
    if (scenes[Number(wanted.scene) - 1]) change.scene = Number(wanted.scene) - 1;
    stop();
    show(change);
    return true;
  };
  const come = () => explorer.scrollIntoView({ block: "nearest" });
  addEventListener("hashchange", () => follow() && come());
  // all parts are drawn once the script has ended: a page waits for its pictures before it says that it is loaded
  let led = false;
  queueMicrotask(() => {
    led = follow();
    if (!led) show(openStudy(0));
  });
  addEventListener("load", () => {
    if (led) return come();
    if (!motionless.matches && !location.hash) {
      timer = setTimeout(start, 1200);
      explorer.dataset.playing = "yes";
    }
  });
}
