// The conversation: sends messages and shows the answer as it arrives.

import {ApiError, explain, setKey, stream} from './api.js';
import {showList, titleOf} from './conversations.js';
import {$, element} from './dom.js';
import {editMessage, grow, messageField} from './field.js';
import {chosenFiles, setFiles, startFiles} from './files.js';
import {boxAt, show} from './log.js';
import {isChat, request, setChat, showMode, startSettings} from './settings.js';
import {load, opened, save, setOpened} from './store.js';

// {id, chat, messages: [{role, content, thoughts, note, files}]}
let conversation = fresh();
let running = null;  // AbortController of the answer in progress
let onKey = () => {};

function fresh() {
  const id = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  return {id, chat: isChat(), messages: []};
}

export function showError(text) {
  $('error').textContent = text;
  $('error').hidden = text === '';
}

export function askForKey(onGiven) {
  onKey = onGiven;
  $('key-form').hidden = false;
  $('key').focus();
}

function seconds(value) {
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

function summary(usage, times, finish) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${usage.prompt_tokens} tokens` + (cached ? ` (${cached} cached)` : ''));
  }
  if (times.first) parts.push(`first token after ${seconds((times.first - times.sent) / 1000)}`);
  const count = usage?.completion_tokens;
  if (count !== undefined) {
    const rate = (count - 1) / ((times.last - times.first) / 1000);
    parts.push(`${count} tokens` + (Number.isFinite(rate) ? ` at ${rate.toFixed(0)} tok/s` : ''));
  }
  if (finish === 'length') parts.push('cut at the most tokens');
  if (finish === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}

// Reads the answer to `before` into its message and view.
async function read(before, answer, view, signal) {
  const times = {sent: performance.now(), first: 0, last: 0};
  const progress = element('progress');
  progress.setAttribute('aria-label', 'Prompt');
  view.note.append(progress, ' waiting');
  let usage = null;
  let finish = '';
  try {
    for await (const event of stream(...request(before), signal)) {
      usage = event.usage ?? usage;
      if (event.prompt_progress && !times.first) {
        const {total, processed, time_ms: time} = event.prompt_progress;
        progress.max = total;
        progress.value = processed;
        const rate = time > 0 ? ` at ${(processed / time * 1000).toFixed(0)} tok/s` : '';
        view.note.lastChild.data = ` prompt ${processed} of ${total} tokens${rate}`;
      }
      const choice = event.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const piece = choice.delta?.content ?? choice.text ?? '';
      const thought = choice.delta?.reasoning_content ?? '';
      if (!piece && !thought) continue;
      times.last = performance.now();
      if (!times.first) {
        times.first = times.last;
        view.note.textContent = '';
      }
      answer.content += piece;
      answer.thoughts += thought;
      view.append(piece, thought);
    }
  } catch (error) {
    if (error.name !== 'AbortError') throw error;
    finish = 'stopped';
  }
  answer.note = summary(usage, times, finish);
}

function setRunning(controller) {
  running = controller;
  const busy = controller !== null;
  $('send').hidden = busy;
  $('stop').hidden = !busy;
  $('log').setAttribute('aria-busy', busy);
}

function showFrom(index) {
  return show(conversation.messages, index, isChat(), {edit, regenerate});
}

const canAsk = () => !running && $('composer').reportValidity();

// Keeps a conversation in the browser.
function keep(kept) {
  if (kept.deleted) return;
  if (kept === conversation) setOpened(kept.id);
  const [{content, files}] = kept.messages;
  try {
    save(kept.id, titleOf(content.trim() || files[0].name), kept);
  } catch {
    showError('The browser has no room left: this conversation is lost when the page is closed. ' +
        'Delete older conversations to keep it.');
  }
  showConversations();
}

function showConversations() {
  showList(conversation.id, open, (id) => {
    if (id === conversation.id) {
      conversation.deleted = true;
      startNew();
    }
    showConversations();
  });
}

// Asks `question` after the first `count` messages, in place of those that follow. Returns false
// if nothing was answered: then everything is as before.
async function ask(count, question) {
  showError('');
  const mine = conversation;
  const before = mine.messages;
  const asked = [...before.slice(0, count), question];
  const answer = {role: 'assistant', content: '', thoughts: '', note: ''};
  mine.messages = [...asked, answer];
  const view = showFrom(count);
  const controller = new AbortController();
  setRunning(controller);
  try {
    await read(asked, answer, view, controller.signal);
  } catch (error) {
    showError(explain(error));
    if (error instanceof ApiError && error.status === 401) askForKey(() => showError(''));
    answer.note = 'cut short';
    if (!answer.content) {
      mine.messages = before;
      if (mine === conversation) showFrom(count);
      return false;
    }
  } finally {
    setRunning(null);
    $('input').focus();
  }
  view.finish(answer.note);
  keep(mine);
  return true;
}

function setInput(text, files) {
  $('input').value = text;
  grow($('input'));
  setFiles(files);
}

async function send() {
  const content = $('input').value;
  const files = chosenFiles();
  if ((content.trim() === '' && files.length === 0) || !canAsk()) return;
  setInput('', []);
  const question = {role: 'user', content, files};
  if (!await ask(conversation.messages.length, question)) setInput(content, files);
}

function edit(message, text = message.content) {
  const index = conversation.messages.indexOf(message);
  editMessage(boxAt(index), text, async (content) => {
    if (canAsk() && !await ask(index, {...message, content})) edit(message, content);
  });
}

function regenerate(answer) {
  const index = conversation.messages.indexOf(answer) - 1;
  if (canAsk()) ask(index, conversation.messages[index]);
}

function change(next) {
  running?.abort();
  conversation = next;
  setOpened(next.id);
  showFrom(0);
  showError('');
  showConversations();
  $('input').focus();
}

const startNew = () => change(fresh());

function open(id) {
  const stored = load(id);
  if (!stored) {
    showError('This conversation is not there: another tab may have deleted it.');
    return;
  }
  setChat(stored.chat);
  change({...stored, id, chat: isChat()});
}

// Called once the model is known.
export function start(props) {
  startSettings(props);
  $('input').disabled = $('send').disabled = false;
  if (load(opened())) open(opened());
  showConversations();
  $('input').focus();
}

$('mode').addEventListener('change', () => {
  showMode();
  startNew();
});
$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
messageField($('input'), send);
$('stop').addEventListener('click', () => running?.abort());
$('clear').addEventListener('click', startNew);
startFiles(showError);
window.addEventListener('storage', showConversations);
window.addEventListener('pagehide', () => {
  const answer = conversation.messages.at(-1);
  if (!running || !answer?.content) return;
  answer.note = 'cut short';
  keep(conversation);
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
});
$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  setKey($('key').value.trim());
  $('key').value = '';
  $('key-form').hidden = true;
  showError('');
  onKey();
});
