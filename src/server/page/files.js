// Text files that go before a message.

import {explain, post} from './api.js';
import {$, button, element} from './dom.js';

const MAX_BYTES = 8 << 20;  // about two million tokens
const count = new Intl.NumberFormat('en');

let files = [];  // {name, text, tokens}; tokens is missing until they are counted

// The part of a request that the files of a message make.
export function fileContext(chosen = []) {
  return chosen.map(({name, text}) => `${name}:\n\n${text}${text.endsWith('\n') ? '' : '\n'}\n`)
      .join('');
}

export function fileLabel({name, tokens}) {
  return tokens === undefined ? name : `${name} · ${count.format(tokens)} tokens`;
}

// The chosen files.
export const chosenFiles = () => files;

export function setFiles(chosen) {
  files = chosen;
  draw();
}

function draw() {
  $('files').hidden = files.length === 0;
  $('files').replaceChildren(...files.map((file) => {
    const item = element('li', '', fileLabel(file));
    const erase = button('Remove', () => setFiles(files.filter((one) => one !== file)));
    erase.setAttribute('aria-label', `Remove ${file.name}`);
    item.append(erase);
    return item;
  }));
}

// Throws an Error that says why a file cannot be added.
async function readText(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than 8 MiB.`);
  let text;
  try {
    text = new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer());
  } catch (error) {
    if (error instanceof TypeError) throw new Error(`${file.name} is not a text in UTF-8.`);
    throw new Error(`${file.name} cannot be read. Is it a folder?`);
  }
  if (text.includes('\0')) throw new Error(`${file.name} is not a text in UTF-8.`);
  return text;
}

// Adds files from the user's machine, and counts their tokens; `report` gets what went wrong.
async function add(chosen, report) {
  for (const source of chosen) {
    let file;
    try {
      file = {name: source.name, text: await readText(source)};
    } catch (error) {
      report(error.message);
      continue;
    }
    setFiles([...files, file]);
    try {
      file.tokens = (await post('tokenize', {
        content: fileContext([file]), add_special: false, parse_special: false,
      })).count;
    } catch (error) {
      report(`The tokens of ${file.name} are not counted. ${explain(error)}`);
    }
    draw();
  }
}

// Files are chosen by the button, or dropped on the conversation.
export function startFiles(report) {
  const target = $('chat');
  const carriesFiles = (event) => event.dataTransfer?.types.includes('Files');
  $('attach').addEventListener('click', () => $('file').click());
  $('file').addEventListener('change', () => {
    add([...$('file').files], report);
    $('file').value = '';
  });
  // Beside the conversation a dropped file must not replace the page.
  document.addEventListener('dragover', (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    target.classList.toggle('drop', target.contains(event.target));
  });
  document.addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) target.classList.remove('drop');
  });
  document.addEventListener('drop', (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    target.classList.remove('drop');
    if (target.contains(event.target)) add([...event.dataTransfer.files], report);
  });
}
