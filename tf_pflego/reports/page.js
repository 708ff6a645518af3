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
  // higher than all before them.
  if (data.target) {
    const rows = by("target-table").tBodies[0].rows;
    const update = () => {
      const target = by("target-value").valueAsNumber;
      const valid = Number.isFinite(target) && target >= 0 && target <= 100;
      by("target-value").setAttribute("aria-invalid", String(!valid));
      if (!valid) {
        by("target-said").textContent = "The target must be a number from 0 to 100. Type one.";
        return;
      }
      let reached = 0;
      data.target.records[by("target-metric").value].forEach((records, k) => {
        // Hundredths of a hundredth of a percent are below what is shown.
        const found = records.find((record) => 100 * record[3] >= target - 1e-9);
        reached += found ? 1 : 0;
        const shown = found
          ? [String(found[0]), number(found[1], 4), number(found[2], 4)]
          : ["not reached", "–", "–"];
        shown.forEach((text, column) => { rows[k].cells[column + 1].textContent = text; });
      });
      const all = data.target.records[0].length;
      by("target-said").textContent = `${reached} of ${all} ${all === 1 ? "run" : "runs"} reached ${target} %.`;
    };
    by("target-value").addEventListener("input", update);
    by("target-metric").addEventListener("change", update);
    update();
  }

  // The table of clients.
  if (data.clients) {
    const { rows, columns, fixed, several, shown } = data.clients;
    const classes = several ? 4 : 3;
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
      return typeof value === "number" && column >= fixed ? value.toFixed(2) : String(value);
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
      const wanted = by("filter-class").value.trim();
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
    for (const id of ["filter-class", "filter-low", "filter-high"]) by(id).addEventListener("input", choose);
    by("filter-column").addEventListener("change", choose);
    by("filter-none").addEventListener("click", () => {
      for (const id of ["filter-class", "filter-low", "filter-high"]) by(id).value = "";
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
