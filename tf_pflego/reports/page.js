"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const number = (value, digits) => Number(value.toPrecision(digits)).toString();

  // The figures along one axis of one metric.
  if (by("metric")) {
    const show = () => {
      const axis = document.querySelector("#axes input:checked").value;
      for (const chart of document.querySelectorAll(".chart")) {
        chart.hidden = chart.dataset.metric !== by("metric").value || chart.dataset.axis !== axis;
      }
    };
    by("metric").addEventListener("change", show);
    by("axes").addEventListener("change", show);
    show();
  }

  // Rounds, seconds and bytes until a target. The records are those values of a run that were
  // better than all before them: higher, or lower where the sign is -1.
  if (data.target) {
    const rows = by("target-table").tBodies[0].rows;
    const { is_share: isShare, sign } = data.target;
    const update = () => {
      const target = by("target-value").valueAsNumber;
      const valid = Number.isFinite(target) && (!isShare || (target >= 0 && target <= 100));
      by("target-value").setAttribute("aria-invalid", String(!valid));
      if (!valid) {
        const range = isShare ? " from 0 to 100" : "";
        by("target-said").textContent = `The target must be a number${range}. Type one.`;
        return;
      }
      let reached = 0;
      data.target.records[by("target-metric").value].forEach((records, k) => {
        // What is smaller than this part of the target is below what is shown.
        const slack = isShare ? 1e-9 : 1e-9 * Math.abs(target);
        const once = records.find((record) => sign * ((isShare ? 100 : 1) * record[3] - target) >= -slack);
        reached += once ? 1 : 0;
        const shown = once
          ? [String(once[0]), number(once[1], 4), number(once[2], 4)]
          : ["not reached", "–", "–"];
        shown.forEach((text, column) => { rows[k].cells[column + 1].textContent = text; });
      });
      const all = data.target.records[0].length;
      by("target-said").textContent = `${reached} of ${all} ${all === 1 ? "run" : "runs"} reached ${target}${isShare ? " %" : ""}.`;
    };
    by("target-value").addEventListener("input", update);
    by("target-metric").addEventListener("change", update);
    update();
  }

  // The table of clients.
  if (data.clients) {
    const { rows, columns, fixed, shown, is_share: isShare } = data.clients;
    const classes = columns.indexOf("classes");
    const filters = ["filter-class", "filter-low", "filter-high"].map(by).filter((one) => one);
    // As many digits after the point in a whole column, whose largest number has four in all.
    const digits = columns.map((_, column) => {
      if (isShare) return 2;
      const sizes = rows.map((row) => Math.abs(Number(row[column]))).filter(Number.isFinite);
      return Math.min(Math.max(3 - Math.floor(Math.log10(Math.max(...sizes, 1e-6))), 0), 9);
    });
    const heads = [...by("clients-table").tHead.rows[0].cells];
    const body = by("clients-table").tBodies[0];
    let sorted = -1, descending = false, from = 0, chosen = rows;

    // Such as "0–3 7", or "0: cat, 4: dog".
    const holds = (text, wanted) => text.split(text.includes(":") ? ", " : " ").some((part) => {
      const [low, high] = part.split(":")[0].split("–").map(Number);
      return part !== "" && low <= wanted && wanted <= (high === undefined ? low : high);
    });
    const cell = (value, column) => {
      if (value === null || value === "") return "–";
      if (typeof value !== "number" || column < fixed) return String(value);
      return value.toFixed(digits[column]);
    };
    const compare = (a, b) => {
      const [x, y] = [a[sorted], b[sorted]];
      // What is not known is last either way.
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
      return descending ? -order : order;
    };
    const fill = () => {
      const part = chosen.slice(from, from + shown);
      body.replaceChildren(...part.map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, column) => {
          const own = document.createElement(column === 0 ? "th" : "td");
          if (column === 0) own.scope = "row";
          own.classList.toggle("number", heads[column].classList.contains("number"));
          own.textContent = cell(value, column);
          line.append(own);
        });
        return line;
      }));
      const what = chosen.length === rows.length
        ? `${rows.length} ${rows.length === 1 ? "client" : "clients"}`
        : `${chosen.length} of ${rows.length} clients fit`;
      const where = chosen.length > shown ? `; shown are ${from + 1} to ${from + part.length}` : "";
      by("clients-said").textContent = `${what}${where}.`;
      by("turn").hidden = chosen.length <= shown;
      by("turn-back").disabled = from === 0;
      by("turn-on").disabled = from + shown >= chosen.length;
    };
    const choose = () => {
      const wanted = classes < 0 ? "" : by("filter-class").value.trim();
      const column = Number(by("filter-column").value);
      const [low, high] = ["filter-low", "filter-high"].map((id) => by(id).valueAsNumber);
      chosen = rows.filter((row) =>
        (wanted === "" || holds(row[classes], Number(wanted)))
        && (Number.isNaN(low) || (row[column] !== null && row[column] >= low))
        && (Number.isNaN(high) || (row[column] !== null && row[column] <= high)));
      if (sorted >= 0) chosen = [...chosen].sort(compare);
      from = 0;
      fill();
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = columns[column];
      button.addEventListener("click", () => {
        descending = sorted === column && !descending;
        sorted = column;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        choose();
      });
      head.replaceChildren(button);
    });
    for (const one of filters) one.addEventListener("input", choose);
    by("filter-column").addEventListener("change", choose);
    by("filter-none").addEventListener("click", () => {
      for (const one of filters) one.value = "";
      choose();
    });
    by("turn-back").addEventListener("click", () => { from -= shown; fill(); });
    by("turn-on").addEventListener("click", () => { from += shown; fill(); });
    by("filters").hidden = false;
    choose();
  }

  // In a notebook the page is the srcdoc of a frame, where a link to a section means one of the
  // notebook, which would take the place of the page.
  if (location.protocol === "about:") {
    for (const link of document.querySelectorAll('a[href^="#"]')) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        by(link.getAttribute("href").slice(1)).scrollIntoView();
      });
    }
  }
})();
