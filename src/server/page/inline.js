// Markdown within a paragraph, as DOM nodes: emphasis, code, links. Everything else stays text.
// The text may be anything: the time grows linearly with its length, and the depth is bounded.

import {element} from './dom.js';

const TOKEN = new RegExp([
  '\\\\[!-/:-@[-`{-~]',  // an escaped character
  '`+', '\\*+', '_+', '~+',
  '!?\\[', '\\]',
  '<https?://[^\\s<>]+>',
  'https?://[^\\s<>"`*[\\]]*[^\\s<>"`*[\\]\'.,;:!?()_~]',  // without what ends a sentence
].join('|'), 'g');
// (URL "title") after a link's text; the URL may contain parentheses.
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
const PROTOCOLS = ['http:', 'https:', 'mailto:'];

// Two underscores mean nothing: __init__ is more frequent in answers than emphasis by them.
const TAGS = {'*': 'em', '**': 'strong', '_': 'em', '~~': 'del'};
const MARKS = {'*': ['*'], '**': ['**'], '***': ['**', '*'], '_': ['_'], '~~': ['~~']};
const MAX_OPEN = 16;
const LEAVE = Symbol('leave');
const WORD = /[\p{L}\p{N}_]/u;
const VISIBLE = /\S/;

// An anchor, or null unless the address is that of a site or a mailbox.
function link(address) {
  if (!URL.canParse(address)) return null;
  const url = new URL(address);
  if (!PROTOCOLS.includes(url.protocol)) return null;
  const made = element('a');
  made.href = made.title = url.href;
  made.target = '_blank';
  made.rel = 'noopener noreferrer nofollow';
  return made;
}

// Positions of runs of backticks, by their length, last first.
function codeMarks(text) {
  const found = new Map();
  for (const {0: run, index} of text.matchAll(/`+/g)) {
    if (!found.has(run.length)) found.set(run.length, []);
    found.get(run.length).push(index);
  }
  for (const positions of found.values()) positions.reverse();
  return found;
}

class Reader {
  items = [];  // strings, nodes, {enter: element} and LEAVE
  open = [];  // marks that may begin something, and where in `items` they are
  end = 0;  // of what has been read

  constructor(text) {
    this.text = text;
    this.codeMarks = codeMarks(text);
  }

  read() {
    for (;;) {
      TOKEN.lastIndex = this.end;
      const match = TOKEN.exec(this.text);
      if (!match) break;
      if (match.index > this.end) this.items.push(this.text.slice(this.end, match.index));
      this.end = match.index + match[0].length;
      this.token(match[0], match.index);
    }
    this.items.push(this.text.slice(this.end));
    return this.items;
  }

  token(token, at) {
    const first = token[0];
    if (first === '\\') {
      this.items.push(token[1]);
    } else if (first === '`') {
      this.code(token, at);
    } else if (token.endsWith('[')) {
      this.opens('[', token);  // an image, ![text](URL), becomes a link: nothing is loaded
    } else if (first === ']') {
      this.closeLink();
    } else if (first === 'h' || first === '<') {
      this.address(token);
    } else {
      this.emphasis(token, this.text[at - 1] ?? ' ', this.text[this.end] ?? ' ');
    }
  }

  code(run, at) {
    const ends = this.codeMarks.get(run.length) ?? [];
    while (ends.at(-1) <= at) ends.pop();
    if (ends.length === 0) {
      this.items.push(run);
      return;
    }
    const inside = this.text.slice(this.end, ends.at(-1));
    this.end = ends.pop() + run.length;
    this.items.push(element('code', '', inside.replace(/^ (.*[^ ].*) $/s, '$1')));
  }

  address(token) {
    const address = token.replace(/^<|>$/g, '');
    const made = link(address);
    made?.append(address);
    this.items.push(made ?? token);
  }

  opens(mark, text) {
    if (this.open.length === MAX_OPEN) this.open.shift();
    this.open.push({mark, at: this.items.length});
    this.items.push(text);
  }

  // The k-th open mark begins what ends here; marks after it are text.
  closes(k, made) {
    this.items[this.open[k].at] = {enter: made};
    this.items.push(LEAVE);
    this.open.length = k;
  }

  closeLink() {
    const k = this.open.findLastIndex((one) => one.mark === '[');
    TARGET.lastIndex = this.end;
    const made = k < 0 ? null : link(TARGET.exec(this.text)?.[1] ?? '');
    if (made) {
      this.end = TARGET.lastIndex;
      this.closes(k, made);
      this.open = this.open.filter((one) => one.mark !== '[');  // no links in links
    } else {
      if (k >= 0) this.open.splice(k, 1);
      this.items.push(']');
    }
  }

  emphasis(run, before, after) {
    const mark = run[0];
    const inWord = (side) => mark === '_' && WORD.test(side);
    let left = run;
    while (left && VISIBLE.test(before) && !inWord(after)) {
      const k = this.open.findLastIndex((one) => one.mark[0] === mark && left.startsWith(one.mark));
      if (k < 0) break;
      left = left.slice(this.open[k].mark.length);
      this.closes(k, element(TAGS[this.open[k].mark]));
    }
    const marks = VISIBLE.test(after) && !inWord(before) ? MARKS[left] : null;
    if (!marks) this.items.push(left);
    for (const one of marks ?? []) this.opens(one, one);
  }
}

// Markdown without blocks as a DocumentFragment.
export function inline(text) {
  const root = new DocumentFragment();
  let into = root;
  for (const item of new Reader(text).read()) {
    if (item === LEAVE) {
      // A link to another site than its text says names it.
      const host = into.host;
      if (host && !into.textContent.includes(host)) into.dataset.host = host;
      into = into.parentNode;
    } else if (item.enter) {
      into.append(item.enter);
      into = item.enter;
    } else if (item !== '') {
      into.append(item);
    }
  }
  return root;
}
