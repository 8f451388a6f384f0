"""The reference renderer: Transformers' own code, at a fixed time."""

import datetime as real
import json
import subprocess

import transformers.utils.chat_template_utils as utils

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class FixedDatetime(real.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 9, 5, 3)


utils.datetime = FixedDatetime


def render_chat(template, request):
    """Returns {"text"} or {"error"} of apply_chat_template(tokenize=False)."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in request["messages"]]
    try:
        rendered, _ = utils.render_jinja_template(
            conversations=[messages],
            tools=request.get("tools"),
            documents=request.get("documents"),
            chat_template=template,
            add_generation_prompt=request.get("add_generation_prompt", False),
            continue_final_message=request.get("continue_final_message", False),
            **{**request.get("special_tokens", {}), **request.get("variables", {})},
        )
        return {"text": rendered[0]}
    except Exception as error:  # noqa: BLE001 - any failure of the reference is an expected error
        return {"error": f"{type(error).__name__}: {error}"}


def render_bare(template, context, fold_constants=True):
    """The bare language, in the environment that Transformers uses for chat templates."""
    try:
        compiled = utils._compile_jinja_template(template)
        if not fold_constants:
            compiled.environment.optimized = False
            compiled = compiled.environment.from_string(template)
        return {"text": compiled.render(**context)}
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"}


def run_program(program, requests):
    """The program's result for each request."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    result = subprocess.run([program], input=lines, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in result.stdout.split("\n") if line]
    if result.returncode != 0 or len(answers) != len(requests):
        raise RuntimeError(
            f"{program} stopped with {result.returncode} after {len(answers)} of {len(requests)}: "
            + result.stderr[-2000:]
        )
    return answers
