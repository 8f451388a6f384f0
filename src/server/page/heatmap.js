// Hit ratios by layer and KV head: a table, so that screen readers can read it.

const table = document.getElementById('heat');
const detail = document.getElementById('heat-detail');
const count = new Intl.NumberFormat('en');

let cells = [];  // [layer][head]
let shown = null;  // the data that the cells show
let focus = {layer: 0, head: 0};

function build(layers, heads) {
  const head = document.createElement('tr');
  head.append(document.createElement('td'));
  for (let h = 0; h < heads; ++h) head.append(header('col', h));
  table.tHead.replaceChildren(head);
  cells = [];
  const rows = [];
  for (let l = 0; l < layers; ++l) {
    const row = document.createElement('tr');
    row.append(header('row', l));
    const line = [];
    for (let h = 0; h < heads; ++h) {
      const cell = document.createElement('td');
      cell.tabIndex = -1;
      cell.dataset.layer = l;
      cell.dataset.head = h;
      row.append(cell);
      line.push(cell);
    }
    rows.push(row);
    cells.push(line);
  }
  table.tBodies[0].replaceChildren(...rows);
  table.classList.toggle('dense', heads > 12);
  cells[0][0].tabIndex = 0;
}

function header(scope, index) {
  const cell = document.createElement('th');
  cell.scope = scope;
  cell.textContent = scope === 'row' ? `L${index}` : `H${index}`;
  return cell;
}

function describe() {
  if (!shown) return;
  const i = focus.layer * shown.heads + focus.head;
  const where = `Layer ${focus.layer}, head ${focus.head}`;
  const lookups = shown.lookups[i];
  const text = lookups === 0 ?
      `${where}: no lookups. It is resident, or all its rows fit.` :
      `${where}: ${count.format(shown.hits[i])} of ${count.format(lookups)} lookups reused their ` +
          `rows, ${count.format(shown.moved[i])} rows were moved.`;
  if (detail.textContent !== text) detail.textContent = text;
}

function select(layer, head, move) {
  cells[focus.layer][focus.head].tabIndex = -1;
  focus = {layer, head};
  const cell = cells[layer][head];
  cell.tabIndex = 0;
  if (move) cell.focus();
  describe();
}

// data: {layers, heads, lookups, hits, moved}; the last three are [layers * heads].
export function draw(data) {
  if (!shown || shown.layers !== data.layers || shown.heads !== data.heads) {
    focus = {layer: 0, head: 0};
    build(data.layers, data.heads);
  }
  shown = data;
  for (let l = 0; l < data.layers; ++l) {
    for (let h = 0; h < data.heads; ++h) {
      const i = l * data.heads + h;
      const percent =
          data.lookups[i] === 0 ? '' : `${Math.round(100 * data.hits[i] / data.lookups[i])}`;
      const cell = cells[l][h];
      if (cell.textContent === percent && cell.dataset.drawn) continue;
      cell.dataset.drawn = '1';
      cell.textContent = percent;
      cell.classList.toggle('none', percent === '');
      cell.classList.toggle('high', Number(percent) > 60);
      cell.style.setProperty('--share', `${percent || 0}%`);
    }
  }
  describe();
}

const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};

table.addEventListener('keydown', (event) => {
  const arrow = ARROWS[event.key];
  if (!arrow || !shown) return;
  event.preventDefault();
  const layer = Math.min(Math.max(focus.layer + arrow[0], 0), shown.layers - 1);
  const head = Math.min(Math.max(focus.head + arrow[1], 0), shown.heads - 1);
  select(layer, head, true);
});
for (const type of ['pointerover', 'focusin']) {
  table.addEventListener(type, (event) => {
    const cell = event.target.closest('tbody td');
    if (cell) select(Number(cell.dataset.layer), Number(cell.dataset.head), false);
  });
}
