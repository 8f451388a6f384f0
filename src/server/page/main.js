// Entry point: finds out what is served, and waits for the model if necessary.

import {ApiError, explain, get} from './api.js';
import {askForKey, showError, start} from './chat.js';
import {watch} from './monitor.js';

const state = document.getElementById('state');

function setState(text, className = '') {
  state.textContent = text;
  state.className = className;
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

// Returns true if the page cannot continue without a key.
function lost(error) {
  if (error instanceof ApiError && error.status === 401) {
    setState('no key', 'away');
    askForKey(begin);
    return true;
  }
  setState(error instanceof ApiError && error.status === 503 ? 'loading' : 'not reached', 'away');
  return false;
}

let begun = false;

async function begin() {
  let props;
  while (!props) {
    try {
      props = await get('props');
    } catch (error) {
      if (lost(error)) {
        if (sessionStorage.getItem('litecache-key')) showError(explain(error));
        return;
      }
      await pause(1000);
    }
  }
  const model = document.getElementById('model');
  model.textContent = `${props.model} · ${props.description} · context of ` +
      `${props.memory.largest_context.toLocaleString('en')} tokens`;
  document.title = `${props.model} · LiteCache`;
  if (!begun) start(props);
  begun = true;
  watch(props, lost);
}

begin();
