// Conversations kept in the browser: a list, and an entry for the messages of each.

const LIST = 'litecache-conversations';
const OPEN = 'litecache-open';
const key = (id) => `litecache-conversation-${id}`;

// What is stored, or null where it is missing or not of this form: others may have changed it.
function read(name, valid) {
  try {
    const value = JSON.parse(localStorage.getItem(name));
    return valid(value) ? value : null;
  } catch {
    return null;
  }
}

const isText = (value) => typeof value === 'string';
const isFile = (one) => isText(one.name) && isText(one.text);
const isMessage = (one) => ['user', 'assistant'].includes(one.role) && isText(one.content) &&
    (one.files ?? []).every(isFile);

// [{id, title}], newest first.
export function list() {
  return read(LIST, (all) => all.every((one) => isText(one.id) && isText(one.title))) ?? [];
}

// {chat, messages}, or null if it is not there.
export function load(id) {
  return read(key(id), (one) => typeof one.chat === 'boolean' && one.messages.every(isMessage));
}

// Throws the browser's error where there is no room. What was kept of it before then remains.
export function save(id, title, {chat, messages}) {
  const others = list().filter((one) => one.id !== id);
  const before = localStorage.getItem(key(id));
  localStorage.setItem(key(id), JSON.stringify({chat, messages}));
  try {
    localStorage.setItem(LIST, JSON.stringify([{id, title}, ...others]));
  } catch (error) {
    if (before === null) localStorage.removeItem(key(id));
    throw error;
  }
}

export function remove(id) {
  localStorage.removeItem(key(id));
  localStorage.setItem(LIST, JSON.stringify(list().filter((one) => one.id !== id)));
}

// The conversation that this tab shows, for a reload.
export const opened = () => sessionStorage.getItem(OPEN);
export const setOpened = (id) => sessionStorage.setItem(OPEN, id);
