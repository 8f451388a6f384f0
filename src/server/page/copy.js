// Buttons that copy a text.

import {button, element} from './dom.js';

// Browsers offer navigator.clipboard only over HTTPS and on the machine itself.
function copySelected(text) {
  const field = element('textarea', 'hidden');
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  return done;
}

async function copy(text, made) {
  let done = false;
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      done = true;
    } else {
      done = copySelected(text);
      made.focus();
    }
  } catch {
    // The browser does not allow it.
  }
  made.textContent = done ? 'Copied' : 'Not copied';
}

// `read` returns the text. What came of it is shown until the button is left.
export function copyButton(read) {
  const made = button('Copy', () => copy(read(), made));
  for (const leave of ['blur', 'pointerleave']) {
    made.addEventListener(leave, () => made.textContent = 'Copy');
  }
  return made;
}
