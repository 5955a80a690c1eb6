"""The source text of an environment's batch loops, with its `reset`, `step` and `observe` left as names.

Environments are stepped in blocks that fit the first cache. A block is loaded into local arrays (`b_`), all of it is
stepped in one loop without a branch, those that are to begin an episode (`ready`) are reset in a second one (`r_`), and
it is stored. The arrays being local, the optimiser sees that they do not overlap, and both loops become vector code.
Environments with array fields, which `step` changes in place, are stepped one by one.
"""

from __future__ import annotations

import math

from headrace.rl.envs.definition import Definition, Field
from headrace.rl.envs.layout import row_bytes, sections
from headrace.rl.envs.random import STREAM_WORDS
from headrace.rl.spec import Discrete

__all__ = ["loops_source", "passes_actions_by_value"]

_LARGEST_TUPLE = 16  # numbers of an action that are passed by value
_LOCAL_BYTES = 16384
_LARGEST_LOCAL = 32  # numbers of an observation that a block keeps in local arrays


def loops_source(definition: Definition, speculate: bool) -> str:
    """The functions `reset_shard`, `restart_shard` and `step_shard` (see `compile` for their arguments).

    `speculate`: whether `step` may be run on an ended environment and its outcome thrown away.
    """
    return "\n".join([_begin(definition), _reset(), _restart(), _one_by_one(definition), _step(definition, speculate)])


def passes_actions_by_value(definition: Definition) -> bool:
    """Whether `step` is given the numbers of an action themselves, and not the array they lie in."""
    return definition.spec.action_size <= _LARGEST_TUPLE


def _pointers(definition: Definition) -> list[str]:
    lines, at = [], "0"
    for field in sections(definition):
        name = f"g{field.name}" if field.name.startswith("_") else f"g_s_{field.name}"  # the loop's own, or a user's
        lines.append(f"    {name} = pointer_{field.dtype.name}(state, {at})")
        at += f" + up64({row_bytes(field)} * n)"
    return lines


def _state(fields: tuple[Field, ...], source: str) -> str:
    return f"State({', '.join(source.format(f=f.name) if not f.is_array else _array(f) for f in fields)})"


def _array(field: Field) -> str:
    return f"array_s_{field.name}(g_s_{field.name}, i * {row_bytes(field)})"


def _action(definition: Definition, where: str) -> str:
    """The expression of one environment's action, `where` being its number in `actions`."""
    space = definition.spec.action
    cast = "int64" if space.dtype.kind == "i" else "float64"
    if isinstance(space, Discrete):
        return f"{cast}(actions[{where}])"
    if passes_actions_by_value(definition):
        return "(" + "".join(f"{cast}(actions[({where}) * {space.size} + {k}]), " for k in range(space.size)) + ")"
    return f"array_action(actions, ({where}) * {space.size * 4})"


def _row(definition: Definition, pointer: str, where: str) -> str:
    size = definition.spec.obs_size
    return f"array_observation({pointer}, ({where}) * {4 * size})"


def _store(definition: Definition, indent: str) -> list[str]:
    return [f"{indent}g_s_{f.name}[i] = after.{f.name}" for f in definition.fields if not f.is_array]


def _begin(definition: Definition) -> str:
    before = _state(definition.fields, "g_s_{f}[i]")
    call = f"reset({before}, rng, PARAMS)" if definition.reset_takes_state else "reset(rng, PARAMS)"
    return "\n".join(
        [
            "def begin(state, n, seed, i, episode, obs):",
            *_pointers(definition),
            f"    rng = stack_uint64({STREAM_WORDS})",
            "    key_stream(rng, seed, i, episode, 0)",
            "    g_episode[i] = episode",
            "    g_steps[i] = 0",
            "    g_ended[i] = 0",
            f"    after = {call}",
            *_store(definition, "    "),
            f"    observe({_state(definition.fields, 'g_s_{f}[i]')}, PARAMS, {_row(definition, 'obs', 'i')})",
            "",
        ]
    )


def _reset() -> str:
    return """
def reset_shard(state, n, seed, first, last, obs):
    for i in range(first, last):
        begin(state, n, seed, i, 0, obs)
"""


def _restart() -> str:
    return """
def restart_shard(state, n, seed, first, last, mask, obs):
    g_episode = pointer_int64(state, 0)
    for i in range(first, last):
        if mask[i]:
            begin(state, n, seed, i, g_episode[i] + 1, obs)
"""


def _truncates(definition: Definition) -> str:
    return f"count >= {definition.spec.max_steps}" if definition.spec.max_steps else "False"


_ARGUMENTS = "state, n, seed, first, last, actions, obs, final_obs, reward, terminated, truncated, autoreset"


def _one_by_one(definition: Definition) -> str:
    size = definition.spec.obs_size
    here = _state(definition.fields, "g_s_{f}[i]")
    return "\n".join(
        [
            f"def one_by_one({_ARGUMENTS}):",
            *_pointers(definition),
            f"    rng = stack_uint64({STREAM_WORDS})",
            "    for i in range(first, last):",
            "        ended = g_ended[i]",
            "        if ended != 0:",
            "            reward[i] = 0.0",
            "            if autoreset == 0:",
            "                terminated[i] = ended & 1",
            "                truncated[i] = ended >> 1",
            f"                observe({here}, PARAMS, {_row(definition, 'obs', 'i')})",
            "            else:",
            "                begin(state, n, seed, i, g_episode[i] + 1, obs)",
            "                terminated[i] = 0",
            "                truncated[i] = 0",
            "            continue",
            "        count = g_steps[i] + 1",
            "        key_stream(rng, seed, i, g_episode[i], count)",
            f"        after, gain, over = step({here}, {_action(definition, 'i')}, rng, PARAMS)",
            *_store(definition, "        "),
            "        g_steps[i] = count",
            "        reward[i] = gain",
            "        flags = (1 if over else 0) | (2 if " + _truncates(definition) + " else 0)",
            "        terminated[i] = flags & 1",
            "        truncated[i] = flags >> 1",
            f"        observe({here}, PARAMS, {_row(definition, 'obs', 'i')})",
            "        if flags != 0:",
            "            if autoreset == 1:",
            f"                for k in range({size}):",
            f"                    final_obs[i * {size} + k] = obs[i * {size} + k]",
            "                begin(state, n, seed, i, g_episode[i] + 1, obs)",
            "            else:",
            "                g_ended[i] = flags",
            "",
        ]
    )


def _step(definition: Definition, speculate: bool) -> str:
    fields, size, width = definition.fields, definition.spec.obs_size, definition.spec.action_size
    if any(f.is_array for f in fields) or not passes_actions_by_value(definition) or size > _LARGEST_LOCAL:
        return f"def step_shard({_ARGUMENTS}):\n    one_by_one({_ARGUMENTS})\n"
    block = _block(definition)
    kind = definition.spec.action.dtype.name
    action = _action(definition, "j").replace("actions[", "b_actions[")
    before = f"{_state(fields, 'b_s_{f}[ready[k]]')}, " if definition.reset_takes_state else ""
    return "\n".join(
        [
            f"def step_shard({_ARGUMENTS}):",
            *_pointers(definition),
            f"    rng = stack_uint64({STREAM_WORDS})",
            *(f"    b_s_{f.name} = stack_{f.dtype.name}({block})" for f in fields),
            *(f"    r_s_{f.name} = stack_{f.dtype.name}({block})" for f in fields),
            f"    b_steps = stack_int32({block})",
            f"    b_flags = stack_uint8({block})",
            f"    b_ended = stack_uint8({block})",
            f"    b_reward = stack_float32({block})",
            f"    b_actions = stack_{kind}({block * width})",
            f"    b_obs = stack_float32({block * size})",
            f"    r_obs = stack_float32({block * size})",
            f"    ready = stack_int32({block})",
            f"    for base in range(first, last, {block}):",
            f"        m = min(last - base, {block})",
            "        waiting = 0",
            "        for j in range(m):",
            "            b_ended[j] = g_ended[base + j]",
            "            waiting |= b_ended[j]",
            f"        if waiting != 0 and (autoreset != 2 or {not speculate}):",
            f"            one_by_one({_ARGUMENTS.replace('first, last', 'base, base + m')})",
            "            continue",
            "        for j in range(m):",
            *(f"            b_s_{f.name}[j] = g_s_{f.name}[base + j]" for f in fields),
            "            b_steps[j] = g_steps[base + j]",
            f"        for j in range(m * {width}):",
            f"            b_actions[j] = actions[base * {width} + j]",
            "        for j in range(m):",
            "            count = b_steps[j] + 1",
            "            key_stream(rng, seed, base + j, g_episode[base + j], count)",
            f"            after, gain, over = step({_state(fields, 'b_s_{f}[j]')}, {action}, rng, PARAMS)",
            *(f"            b_s_{f.name}[j] = after.{f.name}" for f in fields),
            "            b_steps[j] = count",
            "            b_reward[j] = gain",
            "            b_flags[j] = (1 if over else 0) | (2 if " + _truncates(definition) + " else 0)",
            f"            observe({_state(fields, 'b_s_{f}[j]')}, PARAMS, {_row(definition, 'b_obs', 'j')})",
            "        n_ready = 0",
            "        if autoreset == 1:",
            "            for j in range(m):",
            "                ready[n_ready] = j",
            "                n_ready += 1 if b_flags[j] != 0 else 0",
            "            for k in range(n_ready):",
            f"                for q in range({size}):",
            f"                    final_obs[(base + ready[k]) * {size} + q] = b_obs[ready[k] * {size} + q]",
            "        else:",
            "            for j in range(m):",
            "                g_ended[base + j] = 0 if b_ended[j] != 0 else b_flags[j]",
            "            if waiting != 0:",
            "                for j in range(m):",
            "                    b_flags[j] = 0 if b_ended[j] != 0 else b_flags[j]",
            "                    b_reward[j] = 0.0 if b_ended[j] != 0 else b_reward[j]",
            "                    ready[n_ready] = j",
            "                    n_ready += 1 if b_ended[j] != 0 else 0",
            "        for k in range(n_ready):",
            "            i = base + ready[k]",
            "            key_stream(rng, seed, i, g_episode[i] + 1, 0)",
            f"            after = reset({before}rng, PARAMS)",
            *(f"            r_s_{f.name}[k] = after.{f.name}" for f in fields),
            f"            observe({_state(fields, 'r_s_{f}[k]')}, PARAMS, {_row(definition, 'r_obs', 'k')})",
            "        for k in range(n_ready):",
            "            j = ready[k]",
            "            g_episode[base + j] += 1",
            "            b_steps[j] = 0",
            *(f"            b_s_{f.name}[j] = r_s_{f.name}[k]" for f in fields),
            f"            for q in range({size}):",
            f"                b_obs[j * {size} + q] = r_obs[k * {size} + q]",
            "        for j in range(m):",
            *(f"            g_s_{f.name}[base + j] = b_s_{f.name}[j]" for f in fields),
            "            g_steps[base + j] = b_steps[j]",
            "            reward[base + j] = b_reward[j]",
            "            terminated[base + j] = b_flags[j] & 1",
            "            truncated[base + j] = b_flags[j] >> 1",
            f"        for j in range(m * {size}):",
            f"            obs[base * {size} + j] = b_obs[j]",
            "",
        ]
    )


def _block(definition: Definition) -> int:
    """Environments of a block: as many as keep its local arrays in about a third of the first cache, 64 to 512."""
    one = sum(f.dtype.itemsize for f in definition.fields) + 4 * definition.spec.obs_size
    one += 4 * definition.spec.action_size + 10  # steps, reward, how it ended
    return max(64, min(512, 1 << int(math.log2(_LOCAL_BYTES / one))))
