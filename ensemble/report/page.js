"use strict";
// The table of all problems: chosen by group, searched by m, n and k, sorted by a heading.
(() => {
  const data = JSON.parse(document.getElementById("problems").textContent);
  const element = (id) => document.getElementById(id);
  const SHOWN = 500; // rows at first, and with each "more"
  let sorted = { column: 0, falling: false };
  let shown = SHOWN;

  // "128", "128-512", "128-" and "-512"; anything else matches nothing.
  function range(text) {
    text = text.replace(/\s/g, "");
    if (text === "") return [0, Infinity];
    const parts = /^(\d*)(-?)(\d*)$/.exec(text);
    if (!parts || text === "-") return [1, 0];
    const least = parts[1] === "" ? 0 : Number(parts[1]);
    if (parts[2] === "") return [least, least];
    return [least, parts[3] === "" ? Infinity : Number(parts[3])];
  }

  // Numbers by size, before texts, before what is missing; whichever way they are sorted.
  function compare(a, b) {
    const rank = (value) => (typeof value === "number" ? 0 : value === null ? 2 : 1);
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    if (a === b || a === null) return 0;
    return (a < b ? -1 : 1) * (sorted.falling ? -1 : 1);
  }

  function expanded(group) {
    return group.rows.map(([m, n, k, times, plan]) => {
      const flop = 2 * m * n * k;
      const moved = (m + n) * k * group.bytes + m * n * group.out_bytes;
      const ratios = group.ratios.map(([theirs, ours]) =>
        typeof times[theirs] === "number" && typeof times[ours] === "number" ? times[theirs] / times[ours] : null);
      const [kernel, text] = plan === null ? [null, null] : plan.map((at) => data.texts[at]);
      return [m, n, k, flop / 1e9, flop / moved, ...times, ...ratios, kernel, text];
    });
  }

  function draw() {
    const group = data.groups[Number(element("group").value)];
    const headings = ["m", "n", "k", "GFLOP", "FLOP/B", ...group.contenders.map((name) => name + " us"),
      ...group.ratio_names, "kernel", "plan"];
    const digits = [0, 0, 0, 3, 1, ...group.contenders.map(() => 2), ...group.ratio_names.map(() => 3)];
    if (sorted.column >= headings.length) sorted = { column: 0, falling: false };
    const ranges = ["m", "n", "k"].map((name) => range(element("search-" + name).value));
    const found = expanded(group).filter((row) => ranges.every(([least, most], at) => least <= row[at] && row[at] <= most));
    found.sort((a, b) => compare(a[sorted.column], b[sorted.column]));
    const head = document.createElement("tr");
    headings.forEach((heading, at) => {
      const cell = document.createElement("th");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading + (at === sorted.column ? (sorted.falling ? " \u25bc" : " \u25b2") : "");
      button.addEventListener("click", () => {
        sorted = { column: at, falling: at === sorted.column && !sorted.falling };
        draw();
      });
      cell.scope = "col";
      cell.setAttribute("aria-sort", at !== sorted.column ? "none" : sorted.falling ? "descending" : "ascending");
      cell.append(button);
      head.append(cell);
    });
    const body = document.createDocumentFragment();
    for (const row of found.slice(0, shown)) {
      const line = document.createElement("tr");
      row.forEach((value, at) => {
        const cell = document.createElement("td");
        if (typeof value !== "number") cell.className = "text";
        cell.textContent = value === null ? "-" : typeof value === "number" ? value.toFixed(digits[at]) : value;
        line.append(cell);
      });
      body.append(line);
    }
    element("all").tHead.replaceChildren(head);
    element("all").tBodies[0].replaceChildren(body);
    element("count").textContent = `${found.length} of ${group.rows.length} problems, ${Math.min(shown, found.length)} shown`;
    element("more").hidden = found.length <= shown;
  }

  data.groups.forEach((group, at) => element("group").append(new Option(group.title, at)));
  for (const id of ["group", "search-m", "search-n", "search-k"])
    element(id).addEventListener("input", () => { shown = SHOWN; draw(); });
  element("more").addEventListener("click", () => { shown += SHOWN; draw(); });
  draw();
})();
