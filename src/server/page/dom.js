// Short forms for the document's elements.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function button(text, onClick) {
  const made = element('button', 'quiet small', text);
  made.type = 'button';
  made.addEventListener('click', () => onClick(made));
  return made;
}
