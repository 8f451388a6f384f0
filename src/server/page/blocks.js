// Markdown's blocks, as DOM nodes: headings, lists, quotes, code, tables, rules, paragraphs.

import {copyButton} from './copy.js';
import {element} from './dom.js';
import {inline} from './inline.js';

const MAX_DEPTH = 8;  // of lists and quotes in each other
const CHILD = 2;  // columns by which an item's further lines are indented at least
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+(?=\S)/;

const isBlank = (line) => line.trim() === '';

function indentOf(line) {
  let columns = 0;
  for (let i = 0; line[i] === ' ' || line[i] === '\t'; ++i) columns += line[i] === ' ' ? 1 : 4;
  return columns;
}

// Without up to that many columns of indentation.
function strip(line, columns) {
  let i = 0;
  for (; columns > 0 && (line[i] === ' ' || line[i] === '\t'); ++i) columns -= line[i] === ' ' ? 1 : 4;
  return line.slice(i);
}

function skipBlank(lines, at) {
  while (at < lines.length && isBlank(lines[at])) ++at;
  return at;
}

// A fence that begins a code block: {mark, language, indent}, or null.
function fenceAt(line) {
  const match = /^( {0,3})(`{3,}|~{3,})(.*)$/.exec(line);
  if (!match || (match[2][0] === '`' && match[3].includes('`'))) return null;
  return {mark: match[2], language: match[3].trim().split(/\s/)[0], indent: match[1].length};
}

function readCode(lines, at, context) {
  const {mark, language, indent} = fenceAt(lines[at]);
  const ends = (line) => line.trim().length >= mark.length && line.trim().replaceAll(mark[0], '') === '';
  let end = at + 1;
  while (end < lines.length && !ends(lines[end])) ++end;
  const text = lines.slice(at + 1, end).map((line) => strip(line, indent)).join('\n');
  const head = element('div', 'code-head');
  head.append(element('span', '', language));
  // A block that still grows is drawn again and again: a click on its button could be lost.
  if (end < lines.length || context.complete) head.append(copyButton(() => text));
  const pre = element('pre');
  pre.append(element('code', '', text));
  const node = element('div', 'code');
  node.append(head, pre);
  return {end: end + 1, node};
}

// Below the headings of the page and of the message.
function readHeading(lines, at) {
  const [, marks, text] = HEADING.exec(lines[at]);
  const node = element(`h${Math.min(marks.length + 3, 6)}`);
  node.append(inline(text));
  return {end: at + 1, node};
}

function readQuote(lines, at, context) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) ++end;
  const node = element('blockquote');
  const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ''));
  node.append(...nodes(inside, context));
  return {end, node};
}

function itemAt(line) {
  const match = ITEM.exec(line);
  if (!match || RULE.test(line)) return null;
  const number = Number.parseInt(match[2], 10);
  return {indent: indentOf(line), width: indentOf(line) + match[0].length - match[1].length,
          length: match[0].length, number, ordered: !Number.isNaN(number)};
}

// The lines of the item at `at`, which is one of a list indented by `base`; returns their end.
function readItem(lines, at, base, inside) {
  const {width, length} = itemAt(lines[at]);
  inside.push(lines[at].slice(length));
  let end = at + 1;
  while (end < lines.length) {
    const next = skipBlank(lines, end);
    if (next === lines.length) break;
    const child = indentOf(lines[next]) >= base + CHILD;
    // A line that is not indented goes on with the paragraph before it.
    if (!child && (next > end || kindAt(lines, next))) break;
    for (; end < next; ++end) inside.push('');
    inside.push(strip(lines[end++], width));
  }
  return end;
}

function readList(lines, at, context) {
  const {indent: base, ordered, number} = itemAt(lines[at]);
  const node = element(ordered ? 'ol' : 'ul');
  if (ordered) node.start = number;
  let end = at;
  for (let next = at; next < lines.length && itemAt(lines[next])?.ordered === ordered;
       next = skipBlank(lines, end)) {
    const inside = [];
    end = readItem(lines, next, base, inside);
    const item = element('li');
    item.append(...nodes(inside, context));
    node.append(item);
  }
  return {end, node};
}

function cells(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/)
      .map((cell) => cell.trim());
}

function isTable(lines, at) {
  const [head, marks] = [lines[at], lines[at + 1] ?? ''];
  return head.includes('|') && marks.includes('|') &&
      cells(marks).every((cell) => /^:?-+:?$/.test(cell)) &&
      cells(head).length === cells(marks).length;
}

function readTable(lines, at) {
  const sides = cells(lines[at + 1]).map((mark) => mark.endsWith(':') ?
      (mark.startsWith(':') ? 'center' : 'right') : '');
  const row = (line, tag) => {
    const made = element('tr');
    const texts = cells(line);
    sides.forEach((side, i) => {
      const cell = element(tag);
      cell.style.textAlign = side;
      cell.append(inline(texts[i] ?? ''));
      made.append(cell);
    });
    return made;
  };
  const head = element('thead'), body = element('tbody'), table = element('table');
  head.append(row(lines[at], 'th'));
  let end = at + 2;
  for (; end < lines.length && lines[end].includes('|'); ++end) body.append(row(lines[end], 'td'));
  table.append(head, body);
  const node = element('div', 'table');
  node.append(table);
  return {end, node};
}

const KINDS = [
  {begins: (lines, at) => fenceAt(lines[at]), read: readCode},
  {begins: (lines, at) => HEADING.test(lines[at]), read: readHeading},
  {begins: (lines, at) => RULE.test(lines[at]),
   read: (lines, at) => ({end: at + 1, node: element('hr')})},
  {begins: (lines, at) => QUOTE.test(lines[at]), read: readQuote},
  {begins: (lines, at) => itemAt(lines[at]), read: readList},
  {begins: isTable, read: readTable},
];

function kindAt(lines, at) {
  return KINDS.find((kind) => kind.begins(lines, at));
}

// Lines stay lines: models that write code without fences remain readable.
function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !kindAt(lines, end)) ++end;
  const node = element('p');
  node.append(inline(lines.slice(at, end).join('\n')));
  return {end, node};
}

// Blocks of lines as [{first, node}], `first` the index of a block's first line. `complete`: no
// line will follow.
export function blocks(lines, {complete, depth = 0}) {
  const found = [];
  const context = {complete, depth: depth + 1};
  for (let at = skipBlank(lines, 0); at < lines.length;) {
    const kind = depth < MAX_DEPTH ? kindAt(lines, at) : null;
    const {end, node} = (kind?.read ?? readParagraph)(lines, at, context);
    found.push({first: at, node});
    at = skipBlank(lines, end);
  }
  return found;
}

function nodes(lines, context) {
  return blocks(lines, context).map((block) => block.node);
}
