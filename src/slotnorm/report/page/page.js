"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const LEVELS = 51; // of a mask's share, see pixels.py
const motionless = matchMedia("(prefers-reduced-motion: reduce)");

// Elements: attributes by name, `text` is their words; nothing is ever parsed as HTML.
const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child));
  return element;
};
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const { namespaceURI } = new DOMParser().parseFromString("<svg></svg>", "text/html").body.firstChild; // no address in here
const shape = (tag, attributes = {}, ...children) => fill(document.createElementNS(namespaceURI, tag), attributes, children);

const written = (value, decimals = 3) => {
  if (value === null || value === undefined) return "–";
  const text = value.toFixed(decimals);
  return Number(text) === 0 ? text.replace("-", "") : text;
};
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0095 ? 1 : 0)} %`;

// Pictures, told by their numbers: each is decoded once.
const decoded = new Map();
const load = (number) => {
  if (!decoded.has(number)) {
    const image = new Image();
    image.src = data.pictures[number];
    decoded.set(number, image.decode().then(() => image));
  }
  return decoded.get(number);
};
const paint = (canvas, image, row = 0, rows = 1) => {
  const height = image.naturalHeight / rows;
  canvas.width = image.naturalWidth;
  canvas.height = height;
  canvas.getContext("2d").drawImage(image, 0, row * height, canvas.width, height, 0, 0, canvas.width, height);
};

// Packed bytes: base64 of a deflated array.
const unpacked = new Map();
const unpack = (number) => {
  if (!unpacked.has(number)) {
    const bytes = Uint8Array.from(atob(data.pictures[number]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(number, new Response(stream).arrayBuffer().then((buffer) => new Uint8Array(buffer)));
  }
  return unpacked.get(number);
};
const rgb = (color) => [1, 3, 5].map((place) => parseInt(color.slice(place, place + 2), 16));

// Pixels (height, width) from a function that gives red, green, blue and alpha of each.
const pixelate = (canvas, height, width, color) => {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let place = 0; place < height * width; place += 1) picture.data.set(color(place), 4 * place);
  context.putImageData(picture, 0, 0);
};

// What the reader looks at; whoever shows it is told when it changes.
const view = { study: 0, place: 0, scene: 0, norm: 0, deep: 0 };
const watchers = [];
const show = (change) => {
  Object.assign(view, change);
  for (const watcher of watchers) watcher();
};
const studyShown = () => data.studies[view.study];
const sceneShown = () => studyShown().scenes[view.scene];
const openStudy = (study) => {
  const content = data.studies[study];
  const trained = content.slots.indexOf(content.looked_into[0]);
  const score = ({ here }, metric) => (here[metric] || [])[trained] ?? 0;
  const scores = content.scenes[content.first].variants.map((variant) => score(variant, "f_ari") + score(variant, "ari"));
  return { study, place: content.start, scene: content.first, deep: 0, norm: scores.indexOf(Math.max(...scores)) };
};
