// Evaluates any setting of the thresholds from the facts in the page. Integers are added and recorded numbers compared:
// nothing is estimated, and every count is that of a replay at the same thresholds.
"use strict";
for (const box of document.querySelectorAll("[data-sliders]")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key in made && key !== "list") made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const ascending = (values) => [...new Set(values)].sort((a, b) => a - b);
  const below = (sorted, limit) => {
    let [from, to] = [0, sorted.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (sorted[middle] < limit) from = middle + 1;
      else to = middle;
    }
    return from;
  };

  // What is written in the page, as objects.
  function unpacked(stack) {
    const number = (value) => (value === null ? null : Number(value));
    const stops = stack.stops.map((text) => {
      const [[tokens, last], ...early] = text.split(";").map((part) => part.split(",").map(Number));
      return { tokens, last, early: early || [] };
    });
    const verified = stack.verified.map((text) =>
      text.split("|").map((row) => {
        const [rank, choices] = row.split(":");
        return { from: Number(rank), choices: (choices || "0=0").split(",").map((part) => part.split("=").map(Number)) };
      }));
    const problems = new Map();
    for (const row of stack.rows) {
      const [problem, upto, branches, shared, tokens, reused, unshared, prefill, top, gap, relative, skips, at, ifSkipped, choice, flags] = row;
      const branchStops = at.map((place) => stops[place]);
      const points = branchStops.flatMap((stop) => stop.early);
      const stretch = {
        upto: number(upto), branches, shared, tokens, reused, unshared, prefill,
        top: number(top), gap: number(gap), relative: number(relative), skips,
        stops: branchStops, ifSkipped, verified: verified[choice],
        entropies: ascending(points.map((point) => point[1])), changes: ascending(points.map((point) => point[2])),
        gradable: flags & 1, fullCorrect: (flags >> 1) & 1,
      };
      if (!problems.has(problem)) problems.set(problem, []);
      problems.get(problem).push(stretch);
    }
    return [...problems.values()];
  }

  // The largest x with scale · x ≤ top, in the arithmetic of the rule itself.
  const bits = new DataView(new ArrayBuffer(8));
  const neighbour = (value, up) => {
    if (value === 0) return up ? Number.MIN_VALUE : -Number.MIN_VALUE;
    bits.setFloat64(0, value);
    bits.setBigInt64(0, bits.getBigInt64(0) + (up === value > 0 ? 1n : -1n));
    return bits.getFloat64(0);
  };
  const largestBelow = (top, scale) => {
    let x = top / scale;
    while (scale * x > top) x = neighbour(x, false);
    while (scale * neighbour(x, true) <= top) x = neighbour(x, true);
    return x;
  };

  function axesOf(stack, problems) {
    const { share, verify, exit } = stack.params;
    const stretches = problems.flat();
    const rule = verify.kind === "cgee" ? verify.params : null;
    const leads = stretches.filter((one) => one.top !== null);
    const inUnit = (values) => values.map((value) => value / stack.nats);
    const unit = exit.params && exit.params.unit === "share-of-ln-vocab" ? "share of ln V" : "nats";
    const found = [];
    if (share.kind === "asks") {
      found.push({ id: "tau", sign: "τ", family: "share", says: "a branch shares at a similarity of at least this",
        low: "every branch shares", high: "no branch shares",
        seen: stretches.filter((one) => one.upto !== null).map((one) => one.upto) });
    }
    if (rule) {
      const tops = leads.flatMap((one) => [
        ...(rule.rule !== "b" ? [one.top] : []),
        ...(rule.rule !== "a" && Number.isFinite(one.top) ? [largestBelow(one.top, rule.floor_scale)] : [])]);
      found.push({ id: "tau_conf", sign: "τ_conf", family: "verify", says: "verification may be skipped at a confidence of at least this",
        low: "always met", high: "never met", seen: tops });
      if (rule.rule !== "b") {
        found.push({ id: "margin", sign: "margin", family: "verify", says: "and at a lead over the second branch of at least this",
          low: "always met", high: "never met", seen: leads.map((one) => one.gap) });
      }
    }
    if (exit.kind === "entropy") {
      const points = stretches.flatMap((one) => one.stops.flatMap((stop) => stop.early));
      found.push({ id: "theta", sign: "θ", family: "exit", unit, says: "a pass may stop after a layer with an entropy below this",
        low: "never met", high: "always met", seen: inUnit(points.map((point) => point[1])) });
      found.push({ id: "epsilon", sign: "ε", family: "exit", unit, says: "and where the entropy changed by less than this",
        low: "never met", high: "always met", seen: inUnit(points.map((point) => point[2])) });
    }
    for (const axis of found) {
      axis.seen = ascending(axis.seen.filter(Number.isFinite));
      axis.start = stack.params[axis.family].params[axis.id];
      const ends = [...axis.seen, axis.start].filter(Number.isFinite);
      const [least, most] = [Math.min(...ends), Math.max(...ends)];
      const span = most > least ? most - least : Math.max(Math.abs(most), 1) * 0.2;
      axis.step = Math.pow(10, Math.floor(Math.log10(span / 200)));
      axis.decimals = Math.max(0, -Math.floor(Math.log10(span / 200)));
      axis.min = Math.floor((least - span * 0.12) / axis.step);
      axis.max = Math.ceil((most + span * 0.12) / axis.step);
      if (axis.family === "exit") axis.min = Math.max(axis.min, 0);
    }
    return found;
  }

  // The sums of a setting. Field by field what the step tables of kvlab hold.
  function evaluate(stack, problems, at) {
    const rule = stack.params.verify.params || {};
    const [theta, epsilon] = [at.theta * stack.nats, at.epsilon * stack.nats];
    const sum = { problems: 0, branches: 0, shared: 0, tokens: 0, reused: 0, unshared: 0, prefill: 0, skipped: 0, verified: 0,
      exited: 0, run: 0, work: 0, full: 0, right: 0, agreeing: 0, harmed: 0, helped: 0, gradable: 0, fullRight: 0 };
    for (const stretches of problems) {
      const one = stretches.find((stretch) => stretch.upto === null || at.tau <= stretch.upto) || stretches[stretches.length - 1];
      let skips = one.skips;
      if (skips === null) {
        const a = one.top >= at.tau_conf && one.gap >= at.margin;
        const b = one.top >= rule.floor_scale * at.tau_conf && one.relative >= rule.relative_margin;
        skips = one.top === null || (rule.rule === "a" ? a : rule.rule === "b" ? b : a || b);
      }
      sum.problems += 1;
      for (const key of ["branches", "shared", "tokens", "reused", "unshared", "prefill", "gradable"]) sum[key] += one[key];
      sum.fullRight += one.fullCorrect;
      let choice = one.ifSkipped;
      for (const stop of one.stops) sum.full += stop.tokens * stack.layers;
      if (skips) {
        sum.skipped += 1;
      } else {
        for (const stop of one.stops) {
          const first = stop.early.find((point) => point[1] < theta && point[2] < epsilon);
          const run = first ? first[0] : stop.last;
          sum.verified += 1;
          sum.exited += run < stack.layers ? 1 : 0;
          sum.run += run;
          sum.work += stop.tokens * run;
        }
        const [row, column] = [below(one.entropies, theta), below(one.changes, epsilon)];
        const line = one.verified.findLast((line) => line.from <= row);
        choice = line.choices.findLast((part) => part[0] <= column)[1];
      }
      sum.right += choice & 1;
      sum.agreeing += (choice >> 1) & 1;
      sum.harmed += (choice >> 2) & 1;
      sum.helped += (choice >> 3) & 1;
    }
    return sum;
  }

  const fractions = (sum, layers) => ({
    tree_accuracy: [sum.right, sum.gradable],
    full_pipeline_accuracy: [sum.fullRight, sum.gradable],
    full_pipeline_agreement: [sum.agreeing, sum.problems],
    harm_rate: [sum.harmed, sum.gradable],
    help_rate: [sum.helped, sum.gradable],
    share_rate: [sum.shared, sum.branches],
    reused_token_rate: [sum.reused, sum.tokens],
    prefill_work_rate: [sum.prefill, sum.unshared],
    verify_skip_rate: [sum.skipped, sum.problems],
    verify_exit_rate: [sum.exited, sum.verified],
    verify_layer_skip_rate: [sum.verified * layers - sum.run, sum.verified * layers],
    verify_work_rate: [sum.work, sum.full],
  });
  const counted = (value) => value.toLocaleString("en-US");
  const share = ([above, under]) => (under ? (above / under).toFixed(4) : "–");

  function yaml(stack, setting) {
    const flow = (value) => {
      if (value === null || typeof value !== "object") return JSON.stringify(value);
      if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
      return `{${Object.entries(value).map(([key, inner]) => `${key}: ${flow(inner)}`).join(", ")}}`;
    };
    const lines = [`- label: ${JSON.stringify(stack.label)}`];
    for (const family of ["share", "verify", "exit", "winner"]) {
      const { kind, params } = stack.params[family];
      const set = Object.fromEntries(Object.entries(params || {}).map(([key, value]) => {
        const axis = stack.axes.find((axis) => axis.family === family && axis.id === key);
        return [key, axis ? setting[axis.id] : value];
      }));
      lines.push(`  ${family}: ${flow(Object.keys(set).length ? { kind, params: set } : { kind })}`);
    }
    return lines.join("\n") + "\n";
  }

  const picker = element("select", { id: "slider-stack" });
  data.stacks.forEach((stack, at) => {
    const twins = data.stacks.filter((other) => other.label === stack.label);
    const label = twins.length > 1 ? `${stack.label} (${twins.indexOf(stack) + 1} of ${twins.length})` : stack.label;
    picker.append(element("option", { value: at, textContent: label }));
  });
  const controls = element("div", { className: "axes" });
  const status = element("p", { className: "status", role: "status" });
  const body = element("tbody");
  const code = element("code");
  const copied = element("span", { className: "status", role: "status" });
  const copy = element("button", { type: "button", textContent: "Copy the YAML stack" });
  const reset = element("button", { type: "button", textContent: "Back to the stack’s own thresholds" });
  const heads = ["", "This setting", "Counted", "Its own thresholds"];
  const head = element("tr", {}, ...heads.map((text, at) => element("th", { scope: "col", textContent: text, className: at ? "n" : "" })));
  head.firstChild.textContent = "Outcome";
  box.append(
    element("div", { className: "controls" }, element("label", { htmlFor: "slider-stack", textContent: "Stack" }), picker, reset),
    controls, status,
    element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Outcome of the setting" },
      element("table", {}, element("caption", { className: "hidden", textContent: "What the setting gives, with numerator and denominator" }),
        element("thead", {}, head), body)),
    element("div", { className: "controls" }, copy, copied),
    element("pre", { tabIndex: 0, "aria-label": "The setting as a stack of a scenario" }, code));

  let stack, problems, setting, start, pending;

  function choose() {
    stack = data.stacks[picker.value];
    problems = stack.problems ??= unpacked(stack);
    stack.axes ??= axesOf(stack, problems);
    setting = { tau: 0, tau_conf: 0, margin: 0, theta: 0, epsilon: 0 };
    for (const axis of stack.axes) setting[axis.id] = axis.start;
    start = fractions(evaluate(stack, problems, setting), stack.layers);
    controls.replaceChildren(...stack.axes.map(control));
    show();
  }

  function control(axis) {
    const id = `slider-${axis.id}`;
    const place = (value) => Math.min(Math.max(Math.round(value / axis.step), axis.min), axis.max);
    const slider = element("input", { id, type: "range", min: axis.min, max: axis.max, step: 1 });
    const field = element("input", { type: "number", step: "any", "aria-label": `${axis.sign}, exact value` });
    const hint = element("p", { id: `${id}-hint`, className: "note" });
    slider.setAttribute("aria-describedby", hint.id);
    const zone = element("div", { className: "zones", "aria-hidden": "true" });
    const width = axis.max - axis.min;
    const share = (value) => Math.min(Math.max((value / axis.step - axis.min) / width, 0), 1) * 100;
    if (axis.seen.length) {
      const [least, most] = [axis.seen[0], axis.seen[axis.seen.length - 1]];
      zone.append(...[[0, share(least)], [share(most), 100]].map(([from, to]) => {
        const part = element("span", { className: "vacuous" });
        part.style.left = `${from}%`;
        part.style.width = `${to - from}%`;
        return part;
      }));
      const marks = axis.seen.length > 200 ? axis.seen.filter((_, at) => at % Math.ceil(axis.seen.length / 200) === 0) : axis.seen;
      zone.append(...marks.map((value) => {
        const mark = element("span", { className: "seen" });
        mark.style.left = `${share(value)}%`;
        return mark;
      }));
    } else {
      const part = element("span", { className: "vacuous" });
      part.style.width = "100%";
      zone.append(part);
    }
    const tell = () => {
      const value = setting[axis.id];
      const { seen } = axis;
      let where;
      if (!seen.length) where = "vacuous: nothing is compared with it";
      else if (value <= seen[0]) where = `vacuous, ${axis.low}: no recorded value is below it`;
      else if (value > seen[seen.length - 1]) where = `vacuous, ${axis.high}: every recorded value is below it`;
      else where = `${counted(below(seen, value))} of ${counted(seen.length)} recorded values are below it`;
      hint.textContent = `${axis.says}; ${where}.`;
      slider.setAttribute("aria-valuetext", `${value}${axis.unit ? ` ${axis.unit}` : ""}, ${where}`);
      hint.classList.toggle("warned", where.startsWith("vacuous"));
    };
    const changed = () => { tell(); cancelAnimationFrame(pending); pending = requestAnimationFrame(show); };
    slider.addEventListener("input", () => {
      setting[axis.id] = Number((Number(slider.value) * axis.step).toFixed(axis.decimals));
      field.value = setting[axis.id];
      changed();
    });
    field.addEventListener("input", () => {
      const value = Number(field.value);
      if (field.value.trim() === "" || !Number.isFinite(value)) return;
      setting[axis.id] = value;
      slider.value = place(value);
      changed();
    });
    slider.value = place(axis.start);
    field.value = axis.start;
    tell();
    const label = element("label", { htmlFor: id, textContent: axis.sign + (axis.unit ? ` (${axis.unit})` : "") });
    return element("div", { className: "axis", "data-axis": axis.id }, label, field, element("div", { className: "track" }, slider, zone), hint);
  }

  function show() {
    const sum = evaluate(stack, problems, setting);
    const found = fractions(sum, stack.layers);
    const line = (id, label, doc, value, under, own) => {
      const name = element("th", { scope: "row", textContent: label, title: doc });
      return element("tr", { "data-metric": id }, name, ...[value, under, own].map((text) => element("td", { className: "n", textContent: text })));
    };
    const rows = data.metrics.map(({ id, label, doc }) =>
      line(id, label, doc, share(found[id]), found[id].map(counted).join(" / "), share(start[id])));
    const mean = sum.verified ? (sum.run / sum.verified).toFixed(2) : "–";
    rows.push(line("layers_run", `Layers run per verified branch, of ${stack.layers}`, "Mean exit layer of the verifier’s pass", mean,
      `${counted(sum.run)} / ${counted(sum.verified)}`, ""));
    body.replaceChildren(...rows);
    const names = stack.axes.map((axis) => `${axis.sign} ${setting[axis.id]}`).join(", ");
    status.textContent = `At ${names}: ${counted(sum.right)} of ${counted(sum.gradable)} problems right, ${counted(sum.harmed)} harmed, ` +
      `${counted(sum.shared)} of ${counted(sum.branches)} branches share, ${counted(sum.skipped)} of ${counted(sum.problems)} verifications skipped.`;
    code.textContent = yaml(stack, setting);
    copied.textContent = "";
  }

  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copied.textContent = "Copied.";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      copied.textContent = document.execCommand("copy") ? "Copied." : "Selected: copy it with the keyboard.";
    }
  });
  reset.addEventListener("click", choose);
  picker.addEventListener("change", choose);
  if (data.stacks.length) choose();
}
