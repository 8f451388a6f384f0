// Live view of the engine: polls /stats twice a second and shows the change between two answers.

import {get} from './api.js';
import {$} from './dom.js';
import {draw} from './heatmap.js';

const INTERVAL = 500;  // ms
const RATE = 2;  // s over which rates are computed
const RECENT = 10;  // s covered by the heat map
const MINUTE = 120;  // points of the line chart

const count = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const WHY = {
  miss: 'missed by a lookup',
  prefetch: 'fetched ahead',
  fill: 'first choice after a prompt',
  spill: 'left the recent window',
  prefill: 'of prompts',
};

let past = [];  // answers of the last RECENT seconds, oldest first
let rates = [];

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; ++unit) value /= 1024;
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

function set(id, text) {
  const target = $(id);
  if (target.textContent !== text) target.textContent = text;
}

// The oldest answer that is at most `seconds` older than the newest.
function before(seconds) {
  const now = past.at(-1).time;
  return past.find((stats) => now - stats.time <= seconds);
}

// Growth of a counter per second.
function rate(read) {
  const now = past.at(-1);
  const then = before(RATE);
  return now === then ? 0 : (read(now) - read(then)) / (now.time - then.time);
}

function drawTier(name, used, capacity) {
  const percent = capacity > 0 ? 100 * used / capacity : 0;
  const bar = $(`${name}-bar`);
  // A small share of a large budget stays visible.
  bar.firstElementChild.style.width = used > 0 ? `max(3px, ${Math.min(percent, 100)}%)` : '0';
  bar.setAttribute('aria-valuenow', percent.toFixed(1));
  set(`${name}-bytes`, `${bytes(used)} of ${bytes(capacity)}`);
}

function drawHistory(value) {
  rates.push(value);
  if (rates.length > MINUTE) rates.shift();
  const top = Math.max(...rates, 1);
  const points = rates.map((one, i) => `${i + MINUTE - rates.length},${27 - 26 * one / top}`);
  $('history').firstElementChild.setAttribute('points', points.join(' '));
}

function drawMoved(kv) {
  const body = $('moved').tBodies[0];
  const kinds = Object.keys(kv.moved);
  while (body.rows.length < kinds.length) {
    const row = body.insertRow();
    for (let i = 0; i < 4; ++i) row.insertCell();
    row.cells[0].textContent = WHY[kinds[row.sectionRowIndex]] ?? kinds[row.sectionRowIndex];
  }
  kinds.forEach((kind, i) => {
    const {rows, bytes: size} = kv.moved[kind];
    const texts = [rate((stats) => stats.kv.moved[kind].rows), rows].map((n) => count.format(n));
    [...texts, bytes(size)].forEach((text, k) => {
      const cell = body.rows[i].cells[k + 1];
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}

function drawHeat(stats) {
  const {layers, kv_heads: heads, lookups, hits, rows_moved: moved} = stats.heads;
  const recent = document.querySelector('input[name=period]:checked').value === 'recent';
  const then = recent ? before(RECENT).heads : null;
  const since = (now, old) => then ? now.map((value, i) => value - old[i]) : now;
  draw({
    layers, heads,
    lookups: since(lookups, then?.lookups),
    hits: since(hits, then?.hits),
    moved: since(moved, then?.rows_moved),
  });
}

function show(stats) {
  // After a restart the server's counters begin again at zero.
  if (past.length > 0 && stats.time <= past.at(-1).time) past = [];
  past.push(stats);
  while (stats.time - past[0].time > RECENT) past.shift();
  const decoded = rate((one) => one.tokens.generated);
  set('decode-rate', count.format(decoded));
  set('prefill-rate', count.format(rate((one) => one.tokens.prompt)));
  set('running', count.format(stats.requests.running));
  set('waiting', count.format(stats.requests.waiting));
  drawHistory(decoded);
  const {used, capacity} = stats.kv;
  drawTier('device', used.device, capacity.device);
  $('host-tier').hidden = capacity.host === 0;
  drawTier('host', used.host, capacity.host);
  if (stats.heads) {
    drawHeat(stats);
    drawMoved(stats.kv);
  }
}

function showPolicy(kv) {
  $('sparse').hidden = kv.policy === 'full';
  $('policy').textContent = kv.policy === 'full' ?
      'Policy full: every row stays on the device and is read in every step. With --kv-policy ' +
          'litecache, most rows live in host memory, and this page shows which heads reuse theirs.' :
      `Policy ${kv.policy}, retriever ${kv.retriever}, ${kv.resident_heads} of ${kv.kv_heads} ` +
          'heads resident.';
}

// Polls until `failed` treats an error as final (returns true).
export async function watch(props, failed) {
  showPolicy(props.kv);
  for (;;) {
    if (document.visibilityState === 'visible') {
      try {
        show(await get('stats', AbortSignal.timeout(10000)));
        $('state').textContent = 'ready';
        $('state').className = 'ready';
      } catch (error) {
        if (failed(error)) return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
  }
}
