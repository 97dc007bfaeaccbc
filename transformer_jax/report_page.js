const PAGE_SIZE = 25;

/** The hypothesis with its differences; spaces before its words stay outside of the marks. */
function showDifferences(parts) {
  const isEmpty = parts.every(([text, mark]) => mark === "-" || !text.trim());
  const cell = element("td", { class: isEmpty ? "text empty" : "text" });
  for (const [text, mark] of parts) {
    const words = text.trimStart();
    const space = text.slice(0, text.length - words.length);
    if (mark === "-") cell.append(element("del", {}, space, element("s", {}, words)));
    else cell.append(space, mark === "+" ? element("ins", {}, words) : words);
  }
  return cell;
}

function option(index, name) {
  return element("option", { value: index }, name);
}

/** A labelled choice among names; the value is the place of one. */
function choice(label, names, change) {
  const select = element("select", {}, ...names.map((name, index) => option(index, name)));
  select.addEventListener("change", change);
  return [element("label", {}, `${label} `, select), select];
}

function button(text, click) {
  const made = element("button", { type: "button" }, text);
  made.addEventListener("click", click);
  return made;
}

/** The sentences of a test set: a table that is sorted by its headers, a page at a time. */
class Sample {
  constructor(place, { systems, sentences, maps }) {
    Object.assign(this, { place, systems, sentences, maps });
    this.key = "number";
    this.ascending = true;
    this.start = 0;
    const redraw = () => this.draw();
    const several = systems.length > 1;
    [this.minuendLabel, this.minuend] = choice("Difference:", systems, redraw);
    [this.subtrahendLabel, this.subtrahend] = choice("minus", systems, redraw);
    this.minuend.value = several ? 1 : 0;
    this.missing = element("input", { type: "checkbox" });
    this.missing.addEventListener("change", () =>
      this.place.classList.toggle("missing", this.missing.checked));
    this.shown = element("output");
    this.previous = button("Previous", () => this.turn(-PAGE_SIZE));
    this.next = button("Next", () => this.turn(PAGE_SIZE));
    this.head = element("tr");
    this.body = element("tbody");
    const box = { class: "box", tabindex: 0, role: "region", "aria-label": "Sentences" };
    place.append(
      element("p", { class: "controls" },
        ...(several ? [this.minuendLabel, this.subtrahendLabel] : []),
        element("label", {}, this.missing, " words that are missing")),
      element("div", box, element("table", {}, element("thead", {}, this.head), this.body)),
      element("p", { class: "controls" }, this.previous, this.shown, this.next));
    this.columns = this.makeColumns(several);
    this.draw();
  }

  /** Title, what a column is sorted by, and its cell for a sentence. */
  makeColumns(several) {
    const score = (index) => ({
      title: `chrF ${this.systems[index]}`,
      key: `score ${index}`,
      value: (sentence) => sentence.scores[index],
      digits: 1,
    });
    const difference = {
      title: "difference",
      key: "difference",
      value: ({ scores }) => scores[this.minuend.value] - scores[this.subtrahend.value],
      digits: 1,
    };
    const texts = (names, cell) => names.map((title, index) => ({ title, cell: (s) => cell(s, index) }));
    const references = this.sentences[0].references.map((_, index, all) =>
      all.length > 1 ? `reference ${index + 1}` : "reference");
    const text = (value) => element("td", { class: "text" }, value);
    return [
      { title: "no.", key: "number", value: (s) => s.number, cell: (s) => this.numberCell(s) },
      { title: "words", key: "words", value: (s) => s.words, digits: 0 },
      ...texts(["source"], (s) => text(s.source)),
      ...texts(references, (s, index) => text(s.references[index])),
      ...this.systems.flatMap((name, index) => [
        { title: name, cell: (s) => showDifferences(s.hypotheses[index]) },
        score(index),
      ]),
      ...(several ? [difference] : []),
    ];
  }

  numberCell(sentence) {
    const map = this.maps[this.sentences.indexOf(sentence)];
    if (map === undefined) return element("td", { class: "number" }, String(sentence.number));
    const open = button(String(sentence.number), () => showAttention(sentence, this.systems[0], map));
    open.setAttribute("aria-label", `attention map of sentence ${sentence.number}`);
    return element("td", { class: "number" }, open);
  }

  turn(rows) {
    this.start += rows;
    this.draw();
  }

  sortBy(key) {
    this.ascending = key === this.key ? !this.ascending : true;
    this.key = key;
    this.start = 0;
    this.draw();
  }

  draw() {
    const { value } = this.columns.find(({ key }) => key === this.key);
    const sign = this.ascending ? 1 : -1;
    const rows = this.sentences.toSorted((a, b) => sign * (value(a) - value(b)) || a.number - b.number);
    const end = Math.min(this.start + PAGE_SIZE, rows.length);
    this.head.replaceChildren(...this.columns.map((column) => this.headCell(column)));
    this.body.replaceChildren(...rows.slice(this.start, end).map((sentence) =>
      element("tr", {}, ...this.columns.map((column) => this.cell(column, sentence)))));
    this.shown.textContent = `${this.start + 1} to ${end} of ${rows.length}`;
    this.previous.disabled = this.start === 0;
    this.next.disabled = end === rows.length;
  }

  headCell({ title, key }) {
    if (key === undefined) return element("th", { scope: "col" }, title);
    const direction = key !== this.key ? "none" : this.ascending ? "ascending" : "descending";
    const sort = button(title, () => {
      this.sortBy(key);
      this.head.querySelector(`[data-key="${key}"] button`).focus(); // of the new header
    });
    return element("th", { scope: "col", "aria-sort": direction, "data-key": key }, sort);
  }

  cell({ cell, value, digits }, sentence) {
    if (cell) return cell(sentence);
    return element("td", { class: "number" }, value(sentence).toFixed(digits));
  }
}

/** Opens a dialog with the cross-attention of a sentence, or says why there is none. */
function showAttention(sentence, system, map) {
  const title = element("h2", {}, `Sentence ${sentence.number}, attention of ${system}`);
  const close = button("Close", () => dialog.close());
  const dialog = element("dialog", { "aria-label": title.textContent }, element("header", {}, title, close));
  dialog.addEventListener("close", () => dialog.remove());
  if (typeof map === "string") {
    dialog.append(element("p", {}, `There is no map: ${map}.`));
  } else {
    dialog.append(...attentionMap(map));
  }
  document.body.append(dialog);
  dialog.showModal();
}

/** Choices of layer and head, and the map. */
function attentionMap({ source, target, layers, heads, weights }) {
  const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
  const size = target.length * source.length;
  const numbered = (count) => ["mean", ...Array.from({ length: count }, (_, index) => index + 1)];
  const [layerLabel, layer] = choice("Layer", numbered(layers), redraw);
  const [headLabel, head] = choice("Head", numbered(heads), redraw);
  const box = element("div", { class: "box", tabindex: 0, role: "region", "aria-label": "Attention map" });

  function chosen(select, count) {
    return Number(select.value) ? [Number(select.value) - 1] : [...Array(count).keys()];
  }

  function redraw() {
    const maps = chosen(layer, layers).flatMap((l) => chosen(head, heads).map((h) => (l * heads + h) * size));
    const mean = Array.from({ length: size }, (_, cell) =>
      maps.reduce((sum, start) => sum + bytes[start + cell], 0) / maps.length / 255);
    box.replaceChildren(drawMap(source, target, mean));
  }

  redraw();
  const help = "A row for every piece of the translation, a column for every piece of the source; in percent.";
  return [element("p", { class: "controls" }, layerLabel, headLabel), element("p", {}, help), box];
}

/** A table whose cells are as dark as the weights, relative to the largest. */
function drawMap(source, target, weights) {
  const largest = Math.max(...weights);
  const heads = source.map((piece) => element("th", { scope: "col" }, element("span", {}, piece)));
  const rows = target.map((piece, row) => {
    const cells = source.map((of, column) => {
      const weight = weights[row * source.length + column];
      const percent = Math.round(100 * weight);
      const cell = element("td", { title: `${piece} from ${of}: ${weight.toFixed(3)}` });
      if (percent >= 5) cell.append(String(percent));
      cell.style.setProperty("--weight", weight / largest);
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, piece), ...cells);
  });
  return element("table", { class: "map" },
    element("thead", {}, element("tr", {}, element("td"), ...heads)), element("tbody", {}, ...rows));
}

const sections = readJson("data");
for (const place of document.querySelectorAll(".sample")) {
  new Sample(place, sections[place.dataset.section]);
}
