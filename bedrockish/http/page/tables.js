// Tables and numbers, as all parts of the page show them. All text goes in as text, never as HTML.

export const number = (value) => (value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1));

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
  return (place && value < 100 ? value.toFixed(1) : Math.round(value)) + " " + units[place];
}

// Fills a table. A title is [text, class]; a cell is [text or element, class]. Each cell knows its title: on a phone,
// where a row is a card, it stands before the value.
export function table(element, titles, rows, nothing) {
  const build = (name, content, kind, title) => {
    const cell = document.createElement(name);
    cell.append(content instanceof Node ? content : document.createTextNode(content));
    if (kind) cell.className = kind;
    if (title) cell.dataset.title = title;
    return cell;
  };
  const head = document.createElement("tr");
  for (const [title, kind] of titles) {
    const cell = build("th", title, kind);
    cell.scope = "col";
    head.append(cell);
  }
  const body = rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach(([content, kind], index) => row.append(build(index ? "td" : "th", content, kind ?? titles[index][1], titles[index][0])));
    row.firstChild.scope = "row";
    return row;
  });
  if (!rows.length) {
    const row = document.createElement("tr"), cell = build("td", nothing, "small");
    cell.colSpan = titles.length;
    row.append(cell);
    body.push(row);
  }
  element.replaceChildren(head, ...body);
}
