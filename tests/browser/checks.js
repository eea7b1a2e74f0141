// What `report.py` asks of an open page. Each function gives a list of faults, empty when all is well, unless it says otherwise.
"use strict";
globalThis.kvlabChecks = (() => {
  const visible = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true })
    && element.getClientRects().length > 0 && !element.closest(".hidden, .skip");

  // Contrast as WCAG 2 defines it.
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const luminance = (color) => {
    const [red, green, blue] = channels(color).map((channel) => {
      const c = channel / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const paper = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if ((channels(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };

  // The fill of the last shape of a picture that is drawn before a text and lies under its middle.
  const under = (text) => {
    const box = text.getBBox();
    const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2).matrixTransform(text.getScreenCTM());
    const shapes = [...text.ownerSVGElement.querySelectorAll("path, rect, polygon")].filter((shape) => {
      const is_before = shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      return is_before && getComputedStyle(shape).fill !== "none"
        && shape.isPointInFill(middle.matrixTransform(shape.getScreenCTM().inverse()));
    });
    return shapes.length ? getComputedStyle(shapes.at(-1)).fill : null;
  };

  // Text too faint for its size.
  function faint() {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = new Set();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || /^(SCRIPT|STYLE|NOSCRIPT|TITLE)$/i.test(element.tagName) || !visible(element)) continue;
      if (element.disabled) continue;
      const style = getComputedStyle(element);
      const ink = element.closest("svg") ? style.fill : style.color;
      const size = parseFloat(style.fontSize);
      const needed = !element.closest("svg") && (size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)) ? 3 : 4.5;
      let ratio = contrast(ink, paper(element));
      // Words on a dark tile are as light as the paper is.
      const tile = element.closest("text") ? under(element.closest("text")) : null;
      if (tile) ratio = contrast(ink, tile);
      if (ratio < needed) found.add(`${node.data.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return [...found];
  }

  // Pictures without words, and controls without names.
  function unlabelled() {
    const found = [];
    for (const picture of document.querySelectorAll("svg, img")) {
      if (picture.closest("svg svg") || picture.getAttribute("aria-hidden") === "true") continue;
      const words = picture.getAttribute("alt") || picture.getAttribute("aria-label") || "";
      if (words.length < 10 || (picture.tagName === "svg" && picture.getAttribute("role") !== "img")) found.push(picture.outerHTML.slice(0, 80));
    }
    for (const control of document.querySelectorAll("input, select, button")) {
      const words = control.getAttribute("aria-label") || control.labels?.[0]?.textContent || control.textContent;
      if (!words?.trim()) found.push(control.outerHTML.slice(0, 80));
    }
    return found;
  }

  // Texts of pictures that run over the edge or into each other.
  function clipped() {
    const found = [];
    for (const picture of document.querySelectorAll(".picture svg")) {
      if (!visible(picture)) continue;
      const frame = picture.getBoundingClientRect();
      const texts = [...picture.querySelectorAll("text")].map((text) => ({ words: text.textContent.trim(), at: text.getBoundingClientRect() }));
      const figure = picture.closest("article")?.id;
      texts.forEach(({ words, at }, index) => {
        if (at.left < frame.left - 1 || at.right > frame.right + 1 || at.top < frame.top - 1 || at.bottom > frame.bottom + 1) found.push(`${figure}: ${words} over the edge`);
        for (const other of texts.slice(index + 1)) {
          const wide = Math.min(at.right, other.at.right) - Math.max(at.left, other.at.left);
          const high = Math.min(at.bottom, other.at.bottom) - Math.max(at.top, other.at.top);
          if (wide > 1 && high > at.height * 0.35) found.push(`${figure}: ${words} over ${other.words}`);
        }
      });
    }
    return found;
  }

  const nameOf = (element) => `${element.tagName}#${[...document.querySelectorAll("*")].indexOf(element)}`;
  const focused = () => {
    const element = document.activeElement;
    if (!element || element === document.body) return null;
    const style = getComputedStyle(element);
    return { name: nameOf(element), outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 };
  };
  const interactive = () => [...document.querySelectorAll("#answer ~ * :is(a[href], button, input, select, summary, [tabindex='0'])")]
    .filter((element) => visible(element) && !element.disabled).map(nameOf);

  // Milliseconds of the slowest of a few sorts and filters.
  function slowest() {
    const box = document.querySelector("[data-cells]");
    const times = [...box.querySelectorAll("th button")].slice(0, 6).map((button) => {
      const from = performance.now();
      button.click();
      return performance.now() - from;
    });
    return Math.max(...times);
  }

  // Recorded values on each axis of the stack that is picked.
  function observed() {
    const data = JSON.parse(document.querySelector("[data-sliders] script").textContent);
    const stack = data.stacks[document.querySelector("#slider-stack").value];
    const finite = (values) => values.filter((value) => value !== null && Number.isFinite(Number(value))).map(Number);
    const points = stack.stops.flatMap((text) => text.split(";").slice(1).map((part) => part.split(",").map(Number)));
    return {
      tau: finite(stack.rows.map((row) => row[1])), tau_conf: finite(stack.rows.map((row) => row[8])),
      margin: finite(stack.rows.map((row) => row[9])), theta: points.map((point) => point[1]), epsilon: points.map((point) => point[2]),
    };
  }

  // Value and fraction of each outcome that is shown.
  const outcome = () => Object.fromEntries([...document.querySelectorAll("[data-sliders] tr[data-metric]")].map((row) => {
    const [value, fraction] = [...row.querySelectorAll("td")].map((cell) => cell.textContent);
    return [row.dataset.metric, [value, fraction]];
  }));

  return { faint, unlabelled, clipped, focused, interactive, slowest, observed, outcome };
})();
