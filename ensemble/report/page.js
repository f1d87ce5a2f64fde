"use strict";
// Every table sorts by its headings. The one of all problems is unpacked (see packed.py), chosen by group, searched by m, n and k;
// the address says what it shows: #group=0&m=128-512&n=&k=4096-&sort=set us&falling=1
(() => {
  const element = (id) => document.getElementById(id);
  const SHOWN = 200; // rows at first, and with each "more"
  const SEARCHED = ["m", "n", "k"];
  let data = null;
  let sorted = { heading: "m", falling: false };
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
  function compare(a, b, falling) {
    const rank = (value) => (typeof value === "number" ? 0 : value === null ? 2 : 1);
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    if (a === b || a === null) return 0;
    return (a < b ? -1 : 1) * (falling ? -1 : 1);
  }

  async function unpacked() {
    const bytes = Uint8Array.from(atob(element("problems").textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const all = new Uint8Array(await new Response(stream).arrayBuffer());
    let at = all.indexOf(10) + 1;
    const header = JSON.parse(new TextDecoder().decode(all.subarray(0, at)));
    const columns = [];
    for (const { rows, bytes: width, minus } of header.columns) {
      const column = new Int32Array(rows);
      for (let row = 0; row < rows; row++) {
        let folded = 0;
        for (let number = 0; number < width; number++) folded += all[at + number * rows + row] * 2 ** (8 * number);
        column[row] = (folded % 2 ? -(folded + 1) / 2 : folded / 2) + (minus === null ? 0 : columns[minus][row]);
      }
      columns.push(column);
      at += width * rows;
    }
    return { ...header, columns };
  }

  // Of one group: {heading, digits, of: row -> number, text or null}.
  function columnsOf(group) {
    const [m, n, k] = group.sizes.map((place) => data.columns[place]);
    const first = data.statuses.length + 1;
    const time = (place) => {
      const codes = data.columns[place];
      return (row) => {
        const code = codes[row];
        if (code === 0) return null;
        return code < first ? data.statuses[code - 1] : data.least_us * Math.exp((code - first) * data.step);
      };
    };
    const times = group.times.map(time);
    const flop = (row) => 2 * m[row] * n[row] * k[row];
    const moved = (row) => (m[row] + n[row]) * k[row] * group.bytes + m[row] * n[row] * group.out_bytes;
    const ratio = ([theirs, ours]) => (row) => {
      const [a, b] = [times[theirs](row), times[ours](row)];
      return typeof a === "number" && typeof b === "number" ? a / b : null;
    };
    const word = (place) => (row) => data.texts[data.columns[place][row]];
    return [
      ...[m, n, k].map((sizes, at) => ({ heading: SEARCHED[at], digits: 0, of: (row) => sizes[row] })),
      { heading: "GFLOP", digits: 3, of: (row) => flop(row) / 1e9 },
      { heading: "FLOP/B", digits: 1, of: (row) => flop(row) / moved(row) },
      ...group.contenders.map((name, at) => ({ heading: name + " us", digits: 2, of: times[at] })),
      ...group.ratio_names.map((name, at) => ({ heading: name, digits: 3, of: ratio(group.ratios[at]) })),
      { heading: "kernel", digits: 0, of: word(group.plan[0]) },
      { heading: "plan", digits: 0, of: word(group.plan[1]) },
    ];
  }

  function headed(cell, text, state, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text + (state === "none" ? "" : state === "descending" ? " \u25bc" : " \u25b2");
    button.addEventListener("click", act);
    cell.scope = "col";
    cell.setAttribute("aria-sort", state);
    cell.replaceChildren(button);
  }

  function draw() {
    const group = data.groups[Number(element("group").value)];
    const columns = columnsOf(group);
    const by = columns.find((column) => column.heading === sorted.heading) || columns[0];
    const ranges = SEARCHED.map((name) => range(element("search-" + name).value));
    const sizes = columns.slice(0, 3);
    let found = [];
    for (let row = 0; row < group.rows; row++) {
      if (ranges.every(([least, most], at) => least <= sizes[at].of(row) && sizes[at].of(row) <= most)) found.push([by.of(row), row]);
    }
    found.sort((a, b) => compare(a[0], b[0], sorted.falling) || a[1] - b[1]);
    const head = document.createElement("tr");
    for (const column of columns) {
      const cell = document.createElement("th");
      const state = column !== by ? "none" : sorted.falling ? "descending" : "ascending";
      headed(cell, column.heading.replaceAll("_", " "), state, () => {
        sorted = { heading: column.heading, falling: column === by && !sorted.falling };
        changed();
      });
      head.append(cell);
    }
    const body = document.createDocumentFragment();
    for (const [, row] of found.slice(0, shown)) {
      const line = document.createElement("tr");
      for (const column of columns) {
        const cell = document.createElement("td");
        const value = column.of(row);
        if (typeof value !== "number") cell.className = "text";
        cell.textContent = value === null ? "-" : typeof value === "number" ? value.toFixed(column.digits) : value;
        line.append(cell);
      }
      body.append(line);
    }
    element("all").tHead.replaceChildren(head);
    element("all").tBodies[0].replaceChildren(body);
    const number = (value) => value.toLocaleString("en");
    element("count").textContent =
      `${number(found.length)} of ${number(group.rows)} problems, ${number(Math.min(shown, found.length))} shown`;
    element("more").hidden = found.length <= shown;
  }

  // The address and the table say the same.
  function changed() {
    const said = new URLSearchParams({ group: element("group").value });
    for (const name of SEARCHED) if (element("search-" + name).value) said.set(name, element("search-" + name).value);
    said.set("sort", sorted.heading);
    if (sorted.falling) said.set("falling", "1");
    history.replaceState(null, "", "#" + said);
    draw();
  }

  function addressed() {
    if (!location.hash.includes("=")) return;
    const said = new URLSearchParams(location.hash.slice(1));
    if (data.groups[Number(said.get("group"))]) element("group").value = String(Number(said.get("group")));
    for (const name of SEARCHED) element("search-" + name).value = said.get(name) || "";
    sorted = { heading: said.get("sort") || "m", falling: said.get("falling") === "1" };
    shown = SHOWN;
    draw();
    element("problems-table").scrollIntoView();
  }

  // The other tables: by the first number in a cell, else by its text.
  function sortable(table) {
    const value = (row, at) => {
      const text = row.cells[at].textContent.replace(/^10\^/, "");
      const first = /^-?[\d,]*\.?\d+/.exec(text);
      return first ? Number(first[0].replace(/,/g, "")) : text === "-" ? null : text;
    };
    const cells = [...table.tHead.rows[0].cells];
    const titles = cells.map((cell) => cell.textContent);
    let state = { at: -1, falling: false };
    const show = () => cells.forEach((cell, at) => {
      headed(cell, titles[at], at !== state.at ? "none" : state.falling ? "descending" : "ascending", () => {
        state = { at, falling: at === state.at && !state.falling };
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => compare(value(a, at), value(b, at), state.falling));
        table.tBodies[0].append(...rows);
        show();
      });
    });
    show();
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
  unpacked().then((found) => {
    data = found;
    data.groups.forEach((group, at) => element("group").append(new Option(group.title, at)));
    for (const id of ["group", ...SEARCHED.map((name) => "search-" + name)])
      element(id).addEventListener("input", () => { shown = SHOWN; changed(); });
    element("more").addEventListener("click", () => { shown += SHOWN; draw(); });
    window.addEventListener("hashchange", addressed);
    draw();
    addressed();
  }).catch((error) => {
    element("count").textContent = `This browser cannot unpack the table (${error}); summary.json and the records hold its numbers.`;
  });
})();
