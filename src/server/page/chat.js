// The conversation: sends messages and shows the answer as it arrives.

import {ApiError, explain, setKey, stream} from './api.js';
import {$, element} from './dom.js';
import {editMessage, grow, messageField} from './field.js';
import {boxAt, show} from './log.js';
import {isChat, request, showMode, startSettings} from './settings.js';

let messages = [];  // {role, content, thoughts, note}
let running = null;  // AbortController of the answer in progress
let onKey = () => {};

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
  return show(messages, index, isChat(), {edit, regenerate});
}

const canAsk = () => !running && $('composer').reportValidity();

// Asks `content` after the first `keep` messages, in place of those that follow. Returns false if
// nothing was answered: then everything is as before.
async function ask(keep, content) {
  showError('');
  const before = messages;
  const asked = [...before.slice(0, keep), {role: 'user', content}];
  const answer = {role: 'assistant', content: '', thoughts: '', note: ''};
  const mine = messages = [...asked, answer];
  const view = showFrom(keep);
  const controller = new AbortController();
  setRunning(controller);
  try {
    await read(asked, answer, view, controller.signal);
  } catch (error) {
    showError(explain(error));
    if (error instanceof ApiError && error.status === 401) askForKey(() => showError(''));
    answer.note = 'cut short';
    if (!answer.content) {
      if (messages === mine) {
        messages = before;
        showFrom(keep);
      }
      return false;
    }
  } finally {
    setRunning(null);
    $('input').focus();
  }
  view.finish(answer.note);
  return true;
}

function setInput(text) {
  $('input').value = text;
  grow($('input'));
}

async function send() {
  const content = $('input').value;
  if (content.trim() === '' || !canAsk()) return;
  setInput('');
  if (!await ask(messages.length, content)) setInput(content);
}

function edit(message, text = message.content) {
  const index = messages.indexOf(message);
  editMessage(boxAt(index), text, async (changed) => {
    if (canAsk() && !await ask(index, changed)) edit(message, changed);
  });
}

function regenerate(answer) {
  const index = messages.indexOf(answer) - 1;
  if (canAsk()) ask(index, messages[index].content);
}

function clear() {
  running?.abort();
  messages = [];
  showFrom(0);
  showError('');
  $('input').focus();
}

// Called once the model is known.
export function start(props) {
  startSettings(props);
  $('input').disabled = $('send').disabled = false;
  $('input').focus();
}

$('mode').addEventListener('change', () => {
  showMode();
  clear();
});
$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
messageField($('input'), send);
$('stop').addEventListener('click', () => running?.abort());
$('clear').addEventListener('click', clear);
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
