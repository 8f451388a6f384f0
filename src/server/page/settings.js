// The settings below the message field, kept in the tab.

import {$} from './dom.js';
import {fileContext} from './files.js';

const TEXT_TOKENS = 256;  // if the user sets none; the API's own default is 16
const SETTINGS = ['mode', 'temperature', 'max-tokens', 'system'];

let defaultTokens = '';

// A number field: its value, or undefined where it is empty.
function number(id) {
  const value = $(id).value.trim();
  return value === '' ? undefined : Number(value);
}

// Conversation, or texts to continue.
export const isChat = () => $('mode').value === 'chat';

export function setChat(chat) {
  if ($('mode-field').hidden) return;
  $('mode').value = chat ? 'chat' : 'text';
  showMode();
}

// The path and the body of a request that asks for the message after `messages`.
export function request(messages) {
  const body = {
    temperature: number('temperature'),
    max_tokens: number('max-tokens') ?? (isChat() ? undefined : TEXT_TOKENS),
    stream_options: {include_usage: true},
    return_progress: true,
  };
  const sent = messages.map(
      ({role, content, files}) => ({role, content: fileContext(files) + content}));
  if (!isChat()) return ['v1/completions', {...body, prompt: sent.at(-1).content}];
  const system = $('system').value.trim();
  if (system) sent.unshift({role: 'system', content: system});
  return ['v1/chat/completions', {...body, messages: sent}];
}

export function showMode() {
  $('system-field').hidden = !isChat();
  $('input').placeholder = isChat() ? 'Message' : 'Text to continue';
  $('max-tokens').placeholder = isChat() ? defaultTokens : TEXT_TOKENS;
  $('input-label').textContent = $('input').placeholder;
  $('empty').textContent = isChat() ?
      'Messages are sent with the conversation so far.' :
      'The model goes on with each text where it ends; earlier ones are not sent along.';
}

// Called once the model is known.
export function startSettings(props) {
  $('temperature').placeholder = `${props.default_sampling.temperature}`;
  defaultTokens = props.limits.default_max_tokens || 'no bound';
  if (props.limits.max_tokens) $('max-tokens').max = props.limits.max_tokens;
  if (props.chat_template === null) {
    // Without a template there are no turns.
    $('mode').value = 'text';
    $('mode-field').hidden = true;
  }
  showMode();
}

for (const id of SETTINGS) {
  const name = `litecache-${id}`;
  $(id).value = sessionStorage.getItem(name) ?? $(id).value;
  $(id).addEventListener('change', () => sessionStorage.setItem(name, $(id).value));
}
