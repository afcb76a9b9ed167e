// What a page does beyond showing its numbers: sort, filter, copy, switch, read out, remember. Without it they are all there.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  root.classList.add("scripted");

  const status = document.getElementById("status");
  let silence = 0;
  function say(text) {
    status.textContent = text;
    clearTimeout(silence);
    silence = setTimeout(() => { status.textContent = ""; }, 4000);
  }

  // The state of the page lives behind the # of its address: key=value&key=value. What means nothing is ignored.
  const settings = new Map();
  const stored = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  function setting(key, apply) {
    settings.set(key, apply);
    apply(stored().get(key));
  }
  function store(key, value) {
    const state = stored();
    if (value) state.set(key, value);
    else state.delete(key);
    const text = state.toString();
    history.replaceState(null, "", text ? `#${text}` : location.href.split("#")[0]);
  }
  addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return; // an anchor
    const state = stored();
    for (const [key, apply] of settings) apply(state.get(key));
  });

  // Links within the page scroll without touching the state.
  for (const link of all('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      const target = document.getElementById(link.hash.slice(1));
      if (!target) return;
      event.preventDefault();
      if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
      target.focus({ preventScroll: true });
      target.scrollIntoView();
    });
  }

  // Colours: as the system says, light, dark.
  const theme = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  function showTheme(value) {
    const chosen = value === "light" || value === "dark" ? value : "auto";
    if (chosen === "auto") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    theme.textContent = `Colours: ${chosen}`;
  }
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    showTheme(next);
    store("theme", next === "auto" ? "" : next);
  });
  setting("theme", showTheme);

  // Tables: <table id data-sortable>, th[data-key] with a button; td[data-v] holds the exact value, empty for none.
  const value = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.v ?? cell.textContent.trim();
  };
  function compare(a, b, numeric) {
    if (a === "" || b === "") return (a === "") - (b === ""); // nothing known: at the end, either way
    return numeric ? a - b : a < b ? -1 : a > b ? 1 : 0;
  }
  for (const table of all("table[data-sortable]")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const original = [...body.rows];
    const sort = (text) => {
      const [key, direction] = (text || "").split(":");
      const place = heads.findIndex((head) => key && head.dataset.key === key && head.querySelector("button"));
      const valid = place >= 0 && (direction === "asc" || direction === "desc");
      heads.forEach((head, at) => {
        if (valid && at === place) head.setAttribute("aria-sort", direction === "asc" ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      });
      const rows = [...original];
      if (valid) {
        const numeric = heads[place].classList.contains("num");
        const sign = direction === "asc" ? 1 : -1;
        rows.sort((one, two) => {
          const a = value(one, place), b = value(two, place);
          return a === "" || b === "" ? compare(a, b) : sign * compare(a, b, numeric);
        });
      }
      body.append(...rows);
    };
    heads.forEach((head) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const first = head.classList.contains("num") ? "descending" : "ascending";
        const now = head.getAttribute("aria-sort");
        const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
        const text = `${head.dataset.key}:${next === "ascending" ? "asc" : "desc"}`;
        sort(text);
        store(`sort-${table.id}`, text);
        say(`sorted by ${head.textContent.trim()}, ${next}`);
      });
    });
    setting(`sort-${table.id}`, sort);
  }

  // Filters: <input data-filter="table id">; a row stays when its texts hold every word.
  for (const input of all("input[data-filter]")) {
    const table = document.getElementById(input.dataset.filter);
    const shown = document.querySelector(`[data-shown="${table.id}"]`);
    const filter = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) {
        const text = all("[data-text]", row).map((cell) => cell.textContent).join(" ").toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      const left = rows.filter((row) => !row.hidden).length;
      shown.textContent = left === rows.length ? `${rows.length} rows` : `${left} of ${rows.length} rows`;
    };
    input.addEventListener("input", () => {
      filter();
      store(`filter-${table.id}`, input.value);
    });
    setting(`filter-${table.id}`, (text) => {
      input.value = text || "";
      filter();
    });
  }

  // Copies what is shown, in the order shown, with exact values. A spreadsheet would run a name that begins like a formula.
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const plain = (cell, text) => ("text" in cell.dataset && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
  function csv(table) {
    const heads = [...table.tHead.rows[0].cells];
    const places = heads.flatMap((head, place) => (head.dataset.key ? [place] : []));
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const lines = [places.map((place) => heads[place].dataset.key)];
    for (const row of rows) lines.push(places.map((place) => plain(row.cells[place], value(row, place))));
    return lines.map((cells) => cells.map(quoted).join(",") + "\n").join("");
  }
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea"); // pages of plain http have no clipboard
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }
  for (const button of all("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const from = document.getElementById(button.dataset.copy);
      const table = from instanceof HTMLTableElement;
      const done = await copy(table ? csv(from) : from.textContent);
      const rows = table ? `${[...from.tBodies[0].rows].filter((row) => !row.hidden).length} rows copied as CSV` : "copied";
      say(done ? rows : "The browser does not allow copying.");
      button.focus();
    });
  }

  // Heat maps: one pane per measure, of the same shape; the radio buttons choose which is shown.
  for (const map of all("[data-map]")) {
    const panes = all("[data-pane]", map);
    const radios = all('input[type="radio"]', map);
    const show = (name) => {
      const chosen = panes.some((pane) => pane.dataset.pane === name) ? name : panes[0].dataset.pane;
      for (const pane of panes) pane.hidden = pane.dataset.pane !== chosen;
      for (const radio of radios) radio.checked = radio.value === chosen;
    };
    for (const radio of radios) {
      radio.addEventListener("change", () => {
        show(radio.value);
        store(map.dataset.map, radio.value === panes[0].dataset.pane ? "" : radio.value);
      });
    }
    setting(map.dataset.map, show);
    readOut(map, panes.flatMap((pane) => all("table.heat", pane)));
  }

  // The arrow keys walk over the cells; what a cell says in every pane is read out below.
  function readOut(map, tables) {
    const readout = map.querySelector(".readout");
    const tell = (cell) => {
      const row = cell.parentElement.rowIndex, column = cell.cellIndex;
      const table = cell.closest("table");
      const values = tables.map((each) => {
        const text = each.rows[row].cells[column].textContent || "no data";
        return `${each.dataset.say} ${text}${text === "no data" ? "" : each.dataset.unit}`;
      });
      const names = [table.rows[row].cells[0], table.rows[0].cells[column]].map((head) => head.title || head.textContent);
      readout.textContent = `${table.dataset.row}${names[0]}, ${table.dataset.column}${names[1]}: ${values.join(", ")}`;
    };
    for (const table of tables) {
      if (!table.tBodies[0]?.rows.length) continue;
      table.setAttribute("role", "grid");
      let current = table.tBodies[0].rows[0].cells[1];
      current.tabIndex = 0;
      const go = (cell, focus) => {
        current.removeAttribute("tabindex");
        current = cell;
        current.tabIndex = 0;
        if (focus) current.focus();
        tell(current);
      };
      table.addEventListener("keydown", (event) => {
        const rows = [...table.tBodies[0].rows];
        const row = rows.indexOf(current.parentElement), column = current.cellIndex;
        const last = rows[row].cells.length - 1;
        const targets = {
          ArrowRight: [row, Math.min(column + 1, last)], ArrowLeft: [row, Math.max(column - 1, 1)],
          ArrowDown: [Math.min(row + 1, rows.length - 1), column], ArrowUp: [Math.max(row - 1, 0), column],
          Home: [event.ctrlKey ? 0 : row, 1], End: [event.ctrlKey ? rows.length - 1 : row, last],
        };
        const target = targets[event.key];
        if (!target || event.target.tagName !== "TD") return;
        event.preventDefault();
        go(rows[target[0]].cells[target[1]], true);
      });
      table.addEventListener("click", (event) => event.target.tagName === "TD" && go(event.target, true));
      table.addEventListener("focusin", (event) => event.target.tagName === "TD" && tell(event.target));
      table.addEventListener("mouseover", (event) => event.target.tagName === "TD" && tell(event.target));
    }
  }

  // A page of a running job loads itself again, unless told not to or somebody is busy in it.
  const refresh = document.getElementById("refresh");
  const saved = location.protocol === "file:"; // a copy: nothing new comes, and there is no list of jobs above it
  if (saved) {
    refresh?.remove();
    for (const link of all('.bar > a[href="/"]')) link.remove();
  } else if (refresh) {
    const seconds = Number(document.body.dataset.refresh);
    const busy = () => document.activeElement?.tagName === "INPUT" || !getSelection().isCollapsed;
    let on = true;
    setting("refresh", (text) => {
      on = text !== "off";
      refresh.setAttribute("aria-pressed", String(on));
      refresh.textContent = on ? `Refresh every ${seconds} s` : "Refresh is off";
    });
    refresh.addEventListener("click", () => {
      store("refresh", on ? "off" : "");
      settings.get("refresh")(on ? "off" : null);
    });
    setInterval(() => { if (on && !document.hidden && !busy()) location.reload(); }, seconds * 1000);
  }

  // Paper has nothing to click on: everything is open, the SQL comes after the figures.
  let closed = [], moved = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const details of closed) details.open = true;
    moved = all("details.sql").map((details) => [details, details.parentElement]);
    if (!moved.length) return;
    const appendix = document.createElement("section");
    appendix.id = "appendix";
    for (const [details, section] of moved) {
      const title = document.createElement("h2");
      title.textContent = `${section.querySelector("h2").textContent}: SQL`;
      appendix.append(title, details);
    }
    document.getElementById("main").append(appendix);
  });
  addEventListener("afterprint", () => {
    for (const [details, section] of moved) section.append(details);
    for (const details of closed) details.open = false;
    document.getElementById("appendix")?.remove();
  });
})();
