// Fields for messages: as high as their text, sent by Enter.

import {button, element} from './dom.js';

// Up to a bound that the style sets.
export function grow(field) {
  field.style.height = 'auto';
  field.style.height = `${field.scrollHeight + 2}px`;
}

export function messageField(field, send) {
  field.addEventListener('input', () => grow(field));
  field.addEventListener('keydown', (event) => {
    // An input method's Enter ends its composition.
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
}

// Lets the user change a message in its place. `send` gets the new text.
export function editMessage(box, text, send) {
  if (box.classList.contains('editing')) return;
  const form = element('form', 'edit');
  const field = element('textarea', '', text);
  const row = element('div', 'row');
  const submit = element('button', 'small', 'Send');
  const close = () => {
    form.remove();
    box.classList.remove('editing');
  };
  const done = () => field.value.trim() !== '' && send(field.value);
  field.setAttribute('aria-label', 'Message');
  messageField(field, done);
  field.addEventListener('keydown', (event) => event.key === 'Escape' && close());
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    done();
  });
  row.append(submit, button('Cancel', close));
  form.append(field, row);
  box.append(form);
  box.classList.add('editing');
  grow(field);
  field.focus();
}
