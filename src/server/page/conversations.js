// The list of the conversations that the browser keeps.

import {$, button, element} from './dom.js';
import {list, remove} from './store.js';

const MAX_TITLE = 60;

export function titleOf(text) {
  const line = text.trim().split('\n')[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE)}…` : line;
}

// `open` and `removed` get the id of a conversation.
export function showList(current, open, removed) {
  const kept = list();
  $('conversations').hidden = kept.length === 0;
  $('conversations').firstElementChild.textContent = `Conversations (${kept.length})`;
  $('kept').replaceChildren(...kept.map(({id, title}) => {
    const item = element('li');
    const choose = button(title, () => open(id));
    if (id === current) choose.setAttribute('aria-current', 'true');
    const erase = button('Delete', () => {
      if (!confirm(`Delete the conversation "${title}"?`)) return;
      remove(id);
      removed(id);
    });
    erase.setAttribute('aria-label', `Delete ${title}`);
    item.append(choose, erase);
    return item;
  }));
}
