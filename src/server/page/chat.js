// The conversation: sends messages and shows the answer as it arrives.

import {ApiError, explain, setKey, stream} from './api.js';

const $ = (id) => document.getElementById(id);
const TEXT_TOKENS = 256;  // if the user sets none; the API's own default is 16
const SETTINGS = ['mode', 'temperature', 'max-tokens', 'system'];

let messages = [];  // the conversation in the API's format
let running = null;  // AbortController of the answer in progress
let onKey = () => {};
let defaultTokens = '';

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
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

// Keeps the log scrolled to its end unless the reader has scrolled up.
function keepEnd(change) {
  const log = $('log');
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function folded(title, text) {
  const box = element('details');
  const body = element('div', 'text');
  body.append(text);
  box.append(element('summary', '', title), body);
  return box;
}

function addMessage(role, name, text) {
  $('empty').hidden = true;
  const box = element('article', role);
  const body = element('div', 'text', text);
  const note = element('p', 'note');
  box.append(element('h3', '', name), body, note);
  const log = $('log');
  log.append(box);
  log.scrollTop = log.scrollHeight;
  return {box, body, note};
}

// Text between ``` lines becomes code blocks; all of it is inserted as text, never as markup.
function format(body, text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  if (parts.length < 2) return;
  body.replaceChildren(...parts.map((part, i) => element(i % 2 ? 'pre' : 'span', '', part)));
}

// A number field: its value, or undefined where it is empty.
function number(id) {
  const value = $(id).value.trim();
  return value === '' ? undefined : Number(value);
}

function requestBody(chat) {
  const body = {
    temperature: number('temperature'),
    max_tokens: number('max-tokens') ?? (chat ? undefined : TEXT_TOKENS),
    stream_options: {include_usage: true},
    return_progress: true,
  };
  const system = $('system').value.trim();
  if (chat) {
    body.messages = system ? [{role: 'system', content: system}, ...messages] : messages;
  } else {
    body.prompt = messages.at(-1).content;
  }
  return body;
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

// Reads the answer into its box; returns its text and how it ended.
async function read(chat, answer, signal) {
  const times = {sent: performance.now(), first: 0, last: 0};
  const text = document.createTextNode('');
  const thoughts = document.createTextNode('');
  const progress = element('progress');
  progress.setAttribute('aria-label', 'Prompt');
  answer.body.append(text);
  answer.note.append(progress, ' waiting');
  let usage = null;
  let finish = '';
  try {
    const path = chat ? 'v1/chat/completions' : 'v1/completions';
    for await (const event of stream(path, requestBody(chat), signal)) {
      usage = event.usage ?? usage;
      if (event.prompt_progress && !times.first) {
        const {total, processed, time_ms: time} = event.prompt_progress;
        progress.max = total;
        progress.value = processed;
        const rate = time > 0 ? ` at ${(processed / time * 1000).toFixed(0)} tok/s` : '';
        answer.note.lastChild.data = ` prompt ${processed} of ${total} tokens${rate}`;
      }
      const choice = event.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const piece = chat ? choice.delta?.content : choice.text;
      const thought = choice.delta?.reasoning_content;
      if (!piece && !thought) continue;
      times.last = performance.now();
      if (!times.first) {
        times.first = times.last;
        answer.note.textContent = '';
      }
      keepEnd(() => {
        if (thought) thoughts.appendData(thought);
        if (thought && !thoughts.isConnected) answer.body.before(folded('Thoughts', thoughts));
        if (piece) text.appendData(piece);
      });
    }
  } catch (error) {
    if (error.name !== 'AbortError') {
      error.text = text.data;
      throw error;
    }
    finish = 'stopped';
  }
  keepEnd(() => {
    answer.note.textContent = summary(usage, times, finish);
    if (chat) format(answer.body, text.data);
  });
  return text.data;
}

function setRunning(controller) {
  running = controller;
  const busy = controller !== null;
  $('send').hidden = busy;
  $('stop').hidden = !busy;
  $('log').setAttribute('aria-busy', busy);
}

async function send() {
  const content = $('input').value;
  if (running || content.trim() === '') return;
  if (!$('composer').reportValidity()) return;
  showError('');
  const chat = $('mode').value === 'chat';
  messages.push({role: 'user', content});
  const question = addMessage('user', chat ? 'You' : 'Text', content);
  const answer = addMessage('assistant', chat ? 'Model' : 'Goes on', '');
  $('input').value = '';
  grow();
  const controller = new AbortController();
  setRunning(controller);
  try {
    const text = await read(chat, answer, controller.signal);
    messages.push({role: 'assistant', content: text});
  } catch (error) {
    fail(error, content, question, answer);
  } finally {
    if (running === controller) setRunning(null);
    $('input').focus();
  }
}

function fail(error, content, question, answer) {
  showError(explain(error));
  if (error.text) {
    answer.note.textContent = 'cut short';
    messages.push({role: 'assistant', content: error.text});
  } else {
    // Nothing was answered: as if it had not been sent.
    question.box.remove();
    answer.box.remove();
    messages.pop();
    $('empty').hidden = $('log').querySelector('article') !== null;
    $('input').value = content;
    grow();
  }
  if (error instanceof ApiError && error.status === 401) askForKey(() => showError(''));
}

function clear() {
  running?.abort();
  messages = [];
  for (const box of $('log').querySelectorAll('article')) box.remove();
  $('empty').hidden = false;
  showError('');
  $('input').focus();
}

// As high as its text, up to a bound that the style sets.
function grow() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = `${input.scrollHeight + 2}px`;
}

function showMode() {
  const chat = $('mode').value === 'chat';
  $('system-field').hidden = !chat;
  $('input').placeholder = chat ? 'Message' : 'Text to continue';
  $('max-tokens').placeholder = chat ? defaultTokens : TEXT_TOKENS;
  $('input-label').textContent = $('input').placeholder;
  $('empty').textContent = chat ?
      'Messages are sent with the conversation so far.' :
      'The model goes on with each text where it ends; earlier ones are not sent along.';
}

// Called once the model is known.
export function start(props) {
  const sampling = props.default_sampling;
  $('temperature').placeholder = `${sampling.temperature}`;
  defaultTokens = props.limits.default_max_tokens || 'no bound';
  if (props.limits.max_tokens) $('max-tokens').max = props.limits.max_tokens;
  if (props.chat_template === null) {
    // Without a template there are no turns.
    $('mode').value = 'text';
    $('mode-field').hidden = true;
  }
  showMode();
  $('input').disabled = $('send').disabled = false;
  $('input').focus();
}

for (const id of SETTINGS) {
  const name = `litecache-${id}`;
  $(id).value = sessionStorage.getItem(name) ?? $(id).value;
  $(id).addEventListener('change', () => sessionStorage.setItem(name, $(id).value));
}
$('mode').addEventListener('change', () => {
  showMode();
  clear();
});
$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
$('input').addEventListener('input', grow);
$('input').addEventListener('keydown', (event) => {
  // An input method's Enter ends its composition.
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
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
