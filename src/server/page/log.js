// The log of messages.

import {copyButton} from './copy.js';
import {$, button, element} from './dom.js';
import {fileLabel} from './files.js';
import {Markdown, Plain} from './markdown.js';

// Keeps the log scrolled to its end unless the reader has scrolled up.
function keepEnd(change) {
  const log = $('log');
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function folded(title, text) {
  const box = element('details');
  const body = element('div', 'text plain');
  body.append(text);
  box.append(element('summary', '', title), body);
  return box;
}

// A message on the page. It may grow; what arrives between two frames is drawn at once.
export class MessageView {
  pending = '';
  thoughts = document.createTextNode('');
  frame = null;

  constructor(name, message, plain, buttons) {
    this.box = element('article', message.role);
    this.body = element('div', 'text');
    this.note = element('p', 'note');
    this.text = plain ? new Plain(this.body) : new Markdown(this.body);
    const tools = element('div', 'tools');
    tools.append(...buttons);
    this.box.append(element('h3', '', name));
    for (const file of message.files ?? []) this.box.append(element('p', 'note', fileLabel(file)));
    this.box.append(this.body, this.note, tools);
  }

  append(text, thoughts) {
    this.pending += text;
    this.thoughts.appendData(thoughts);
    this.frame ??= requestAnimationFrame(() => keepEnd(() => this.draw()));
  }

  draw() {
    this.frame = null;
    if (this.thoughts.length && !this.thoughts.isConnected) {
      this.body.before(folded('Thoughts', this.thoughts));
    }
    this.text.append(this.pending);
    this.pending = '';
  }

  finish(note) {
    cancelAnimationFrame(this.frame);
    keepEnd(() => {
      this.draw();
      this.text.finish();
      this.note.textContent = note;
    });
  }
}

function buttons(message, actions) {
  if (message.role === 'user') return [button('Edit', () => actions.edit(message))];
  return [copyButton(() => message.content),
          button('Regenerate', () => actions.regenerate(message))];
}

// The message's box in the log, by its place in the conversation.
export const boxAt = (index) => $('log').querySelectorAll('article')[index];

// Shows the messages from the one at `from` on, in place of those that were there; returns the
// view of the last.
export function show(messages, from, chat, actions) {
  const log = $('log');
  for (const box of [...log.querySelectorAll('article')].slice(from)) box.remove();
  let view = null;
  for (const message of messages.slice(from)) {
    const user = message.role === 'user';
    const name = user ? (chat ? 'You' : 'Text') : (chat ? 'Model' : 'Goes on');
    view = new MessageView(name, message, user || !chat, buttons(message, actions));
    log.append(view.box);
    if (message.content || message.thoughts) {
      view.append(message.content, message.thoughts ?? '');
      view.finish(message.note ?? '');
    }
  }
  $('empty').hidden = messages.length > 0;
  log.scrollTop = log.scrollHeight;
  return view;
}
