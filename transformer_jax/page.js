"use strict";

/** What the page holds as JSON in the element of that id. */
function readJson(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

/** A new element with attributes, and text or elements in it; text is never read as HTML. */
function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

/** Draws every figure in the colours of the page, dark or light. */
function drawFigures(figures) {
  const color = getComputedStyle(document.body).color;
  const lines = "rgba(128, 128, 128, 0.3)";
  const modebar = { color, bgcolor: "transparent" };
  const axis = { gridcolor: lines, zerolinecolor: lines, automargin: true };
  const template = { layout: { xaxis: axis, yaxis: axis } };
  for (const [name, { data, layout }] of Object.entries(figures)) {
    const background = { paper_bgcolor: "transparent", plot_bgcolor: "transparent" };
    const look = { ...layout, ...background, template, modebar, font: { color } };
    const buttons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
    const options = { responsive: true, displaylogo: false, modeBarButtons: buttons };
    Plotly.newPlot(name, data, look, options);
  }
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const redraw = () => drawFigures(readJson("figures"));
dark.addEventListener("change", redraw);
redraw();
