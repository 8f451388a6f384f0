// A text that arrives in pieces, drawn as Markdown or as it is.

import {blocks} from './blocks.js';

// Only the end of the text, which may still change its meaning, is drawn again.
export class Markdown {
  rest = '';  // text of the blocks that may change
  nodes = [];

  constructor(target) {
    this.target = target;
  }

  append(piece) {
    this.rest += piece;
    this.draw(false);
  }

  finish() {
    this.draw(true);
  }

  draw(complete) {
    const lines = this.rest.split(/\r?\n/);
    const found = blocks(lines, {complete});
    for (const node of this.nodes) node.remove();
    this.target.append(...found.map((block) => block.node));
    // The block before another one is final once that one's first two lines are complete: the
    // second decides whether the first is a table's head.
    const open = Math.max(0, found.findLastIndex((block) => block.first < lines.length - 2));
    this.nodes = found.slice(open).map((block) => block.node);
    this.rest = lines.slice(found[open]?.first ?? 0).join('\n');
  }
}

export class Plain {
  constructor(target) {
    this.target = target;
    target.classList.add('plain');
  }

  append(piece) {
    this.target.append(piece);
  }

  finish() {}
}
