// A search for an option, `--slots auto`, finds the pages with all of its words. To the index a leading dash excludes a word,
// and two are an error, which the theme shows as "no matching documents"; it does not know numbers. Queries are the only strings
// that the theme sends to its worker.
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const query = message?.data;
  if (typeof query === "string" && /(^|[\s"])-+\w/.test(query)) {
    const words = query.split(/[\s"-]+/).filter((word) => /[a-z]/i.test(word));
    message = { ...message, data: words.map((word) => `+${word}*`).join(" ") };
  }
  return send.call(this, message, ...rest);
};
