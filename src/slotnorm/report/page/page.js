"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
for (const { all, kept } of Object.values(data.panels)) {
  // a normalization of which no run failed has its curve among all
  if (kept) kept.curves = kept.curves.map((curve) => (curve.at ? curve : all.curves.find(({ norm }) => norm === curve.norm)));
}
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
  return text.replace("-", Number(text) === 0 ? "" : "−");
};
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0095 ? 1 : 0)} %`;

// Pictures, told by their numbers: whoever draws them does so at once where all are there, else when they are.
const pictures = new Map();
let awaited = 0;
const withPictures = (numbers, draw) => {
  const images = numbers.map((number) => {
    if (!number) return null;
    if (!pictures.has(number)) {
      const image = new Image();
      image.src = data.pictures[number];
      pictures.set(number, image);
    }
    return pictures.get(number);
  });
  const missing = images.filter((image) => image && !image.complete);
  if (!missing.length) return draw(images);
  awaited += 1;
  Promise.all(missing.map((image) => image.decode())).then(() => {
    awaited -= 1;
    draw(images);
  });
};
const paint = (canvas, image, row = 0, rows = 1) => {
  const height = image.naturalHeight / rows;
  canvas.width = image.naturalWidth;
  canvas.height = height;
  canvas.getContext("2d").drawImage(image, 0, row * height, canvas.width, height, 0, 0, canvas.width, height);
};

// Packed bytes: base64 of a deflated array (RFC 1951 in RFC 1950), unpacked once. The browser's own DecompressionStream
// would have to be waited for, and a page that is printed does not wait.
const codesOf = (lengths) => {
  const symbols = new Int16Array(1 << 16).fill(-1); // by a code's bits behind a 1
  let code = 0;
  for (let length = 1; length < 16; length += 1) {
    lengths.forEach((own, symbol) => {
      if (own === length) symbols[(1 << length) | code++] = symbol;
    });
    code <<= 1;
  }
  return symbols;
};
const repeated = (...pairs) => pairs.flatMap(([value, times]) => Array(times).fill(value));
const inflate = (packed) => {
  const bytes = [];
  let [place, held, bits] = [2, 0, 0];
  const take = (count) => {
    for (; held < count; held += 8) bits |= packed[place++] << held;
    const value = bits & ((1 << count) - 1);
    bits >>>= count;
    held -= count;
    return value;
  };
  const symbol = (symbols) => {
    let code = 1;
    do code = (code << 1) | take(1);
    while (symbols[code] < 0);
    return symbols[code];
  };
  const ownCodes = () => {
    const [literals, distances, count] = [257 + take(5), 1 + take(5), 4 + take(4)];
    const short = Array(19).fill(0);
    for (const at of [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15].slice(0, count)) short[at] = take(3);
    const codes = codesOf(short);
    const lengths = [];
    while (lengths.length < literals + distances) {
      const length = symbol(codes);
      if (length < 16) lengths.push(length);
      else if (length === 16) lengths.push(...repeated([lengths.at(-1), 3 + take(2)]));
      else lengths.push(...repeated([0, length === 17 ? 3 + take(3) : 11 + take(7)]));
    }
    return [codesOf(lengths.slice(0, literals)), codesOf(lengths.slice(literals))];
  };
  for (let last = 0; !last; ) {
    last = take(1);
    const kind = take(2);
    if (kind === 0) {
      held = bits = 0; // what is left of the byte
      const end = place + 4 + packed[place] + 256 * packed[place + 1];
      for (place += 4; place < end; place += 1) bytes.push(packed[place]);
      continue;
    }
    const [literals, distances] =
      kind === 2 ? ownCodes() : [codesOf(repeated([8, 144], [9, 112], [7, 24], [8, 8])), codesOf(repeated([5, 30]))];
    for (let read = symbol(literals); read !== 256; read = symbol(literals)) {
      if (read < 256) {
        bytes.push(read);
        continue;
      }
      const step = read - 257;
      const more = step < 8 || step === 28 ? 0 : (step >> 2) - 1;
      const length = step === 28 ? 258 : 3 + (step < 8 ? step : (4 + (step & 3)) << more) + take(more);
      const far = symbol(distances);
      const farther = far < 4 ? 0 : (far >> 1) - 1;
      const back = 1 + (far < 4 ? far : (2 + (far & 1)) << farther) + take(farther);
      for (let copied = 0; copied < length; copied += 1) bytes.push(bytes[bytes.length - back]);
    }
  }
  return Uint8Array.from(bytes);
};
const unpacked = new Map();
const unpack = (number) => {
  if (!unpacked.has(number)) {
    unpacked.set(number, inflate(Uint8Array.from(atob(data.pictures[number]), (letter) => letter.charCodeAt(0))));
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
addEventListener("beforeprint", () => awaited && show({})); // pictures that have come since are drawn now
const studyShown = () => data.studies[view.study];
const sceneShown = () => studyShown().scenes[view.scene];
const openStudy = (study) => {
  const content = data.studies[study];
  const trained = content.slots.indexOf(content.looked_into[0]);
  const score = ({ here }, metric) => (here[metric] || [])[trained] ?? 0;
  const scores = content.scenes[content.first].variants.map((variant) => score(variant, "f_ari") + score(variant, "ari"));
  return { study, place: content.start, scene: content.first, deep: 0, norm: scores.indexOf(Math.max(...scores)) };
};
