(function () {
  "use strict";
  var charts = JSON.parse(document.getElementById("charts").textContent);
  var touch = matchMedia("(pointer: coarse)").matches;

  // "var(--c0)" becomes the colour that the style sheet has for it now
  function themed(value, styles) {
    if (typeof value === "string") {
      var name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? styles.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) {
      return value.map(function (entry) { return themed(entry, styles); });
    }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = themed(value[key], styles); });
      return copy;
    }
    return value;
  }

  function draw() {
    var styles = getComputedStyle(document.documentElement);
    Object.keys(charts).forEach(function (id) {
      var figure = themed(charts[id], styles);
      figure.layout.dragmode = touch ? false : "zoom";
      Plotly.react(id, figure.data, figure.layout, { displayModeBar: false, responsive: true });
    });
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
