(function () {
  "use strict";
  var seconds = Number(document.body.dataset.reload); // of a run that goes on
  if (seconds) { setTimeout(function () { location.reload(); }, 1000 * seconds); }

  var tip = document.createElement("div");
  tip.className = "tip";
  document.body.appendChild(tip);

  // the texts of the points, which the browser would show late, and only on the point itself
  function textsOf(chart) {
    return Array.from(chart.querySelectorAll("title")).map(function (title) {
      var shape = title.parentNode, box = shape.getBBox();
      title.remove();
      return { shape: shape, x: box.x + box.width / 2, y: box.y + box.height / 2, text: title.textContent };
    });
  }

  document.querySelectorAll(".chart svg").forEach(function (chart) {
    var points = textsOf(chart);
    var near = null;

    function show(point, event) {
      if (near) { near.shape.classList.remove("near"); }
      near = point;
      tip.style.display = point ? "block" : "none";
      if (!point) { return; }
      point.shape.classList.add("near");
      tip.textContent = point.text;
      tip.style.left = Math.max(Math.min(event.pageX + 14, innerWidth - tip.offsetWidth - 8), 4) + "px";
      tip.style.top = event.pageY + 14 + "px";
    }

    function look(event) {
      var nearest = null, least = Infinity;
      if (!points.length) { return; }
      var screen = points[0].shape.getScreenCTM().inverse();
      var at = new DOMPoint(event.clientX, event.clientY).matrixTransform(screen);
      points.forEach(function (point) {
        var away = Math.abs(at.x - point.x) + Math.abs(at.y - point.y) / 4;
        if (away < least) { least = away; nearest = point; }
      });
      show(nearest, event);
    }

    chart.addEventListener("pointermove", look);
    chart.addEventListener("pointerdown", look);
    chart.addEventListener("pointerleave", function () { show(null); });
  });
})();
