"""Chat templates in the style of well-known families, shortened to their differences."""

# ChatML with tools in XML tags (Qwen 2.5, Qwen 3, Hermes), reasoning of the last turn only
QWEN = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and ns.last_query_index == messages|length - 1 %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query_index and message.reasoning_content is string %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
                {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

# One call in JSON, its content trimmed, a date, results in the role ipython (Llama 3.1)
LLAMA = r"""{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

# Turns must alternate, ids of calls have nine characters (Mistral)
MISTRAL = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages if message.role != "tool" and not message.tool_calls %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
{%- endfor %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool | tojson }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user, assistant and tool roles are supported!") }}{%- endif %}
{%- endfor %}"""

# The system prompt at the beginning alone, turns must alternate, ids of calls have nine characters (Mistral Small 3.1)
MISTRAL_SMALL = r"""{{- bos_token }}
{%- if messages[0].role == "system" %}
    {%- set loop_messages = messages[1:] %}{{- "[SYSTEM_PROMPT]" + messages[0].content + "[/SYSTEM_PROMPT]" }}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- for message in loop_messages if message.role != "tool" and not message.tool_calls %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
{%- endfor %}
{%- for message in loop_messages %}
    {%- if message.role == "user" %}
        {%- if tools and message == user_messages[-1] %}{{- "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}{%- endif %}
        {{- "[INST]" + message.content + "[/INST]" }}
    {%- elif message.tool_calls %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (", " if not loop.last else "]" + eos_token) }}
        {%- endfor %}
    {%- elif message.role == "assistant" %}{{- message.content + eos_token }}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user, assistant and tool roles are supported!") }}{%- endif %}
{%- endfor %}"""

# Parts of content, no tools, the system prompt in the first turn (Gemma 3)
GEMMA = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}"""

# Knows the role developer at the beginning alone, drops later system messages, writes one call of a message, and takes
# no text beside reasoning and a call (gpt-oss)
HARMONY = r"""{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort | default("medium")) + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set instructions = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set instructions = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}{{- "# Instructions\n\n" + instructions }}{%- endif %}
    {%- if tools %}{{- "\n\n# Tools\n\nnamespace functions {\n" }}
        {%- for tool in tools %}{{- "type " + tool.function.name + " = " + tool.function | tojson + ";\n" }}{%- endfor %}{{- "}" }}
    {%- endif %}{{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" %}
        {%- if "tool_calls" in message %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("Cannot pass both content and thinking in an assistant message with tool calls!") }}
            {%- elif message.content or message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + (message.content or message.thinking) + "<|end|>" }}
            {%- endif %}
            {%- set call = message.tool_calls[0].function %}{%- set last.name = call.name %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
            {{- call.arguments | tojson }}{{- "<|call|>" }}
        {%- else %}
            {%- if message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if last.name is none %}{{- raise_exception("There was no previous tool call!") }}{%- endif %}
        {{- "<|start|>functions." + last.name + " to=assistant<|message|>" + message.content | tojson + "<|end|>" }}
    {%- elif message.role == "user" %}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}"""

# One system message and only at the beginning, at least one question, calls in XML, so arguments as objects (Qwen3.5)
QWEN35 = r"""{%- macro text_of(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'text' in item %}{{- item.text }}{%- else %}{{- raise_exception('Unexpected item type in content.') }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('Unexpected content type.') }}{%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n\nWrite <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}{{- '\n\n' + text_of(messages[0].content) | trim }}{%- endif %}{{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + text_of(messages[0].content) | trim + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_question=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last_question = loop.index0 %}{%- endif %}{%- endfor %}
{%- if ns.last_question < 0 %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- for message in messages %}
    {%- set content = text_of(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{- raise_exception('System message must be at the beginning.') }}{%- endif %}
    {%- elif message.role == 'user' %}{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_question and message.reasoning_content is string %}
            {{- '<think>\n' + message.reasoning_content | trim + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n\n<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' + key + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}{{- raise_exception('Unexpected message role.') }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

# Each role as a turn of its own, calls in a notation of their own, thinking on demand (Gemma 4)
GEMMA4 = r"""{%- macro written(value) %}
    {%- if value is string %}{{- '<|"|>' + value + '<|"|>' }}
    {%- elif value is mapping %}{{- '{' }}
        {%- for key, item in value | dictsort %}{{- key + ':' + written(item) }}{{- ',' if not loop.last }}{%- endfor %}{{- '}' }}
    {%- elif value is sequence %}{{- '[' }}{%- for item in value %}{{- written(item) }}{{- ',' if not loop.last }}{%- endfor %}{{- ']' }}
    {%- else %}{{- value | tojson }}{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- set loop_messages = messages %}
{%- if enable_thinking or tools or messages[0].role in ['system', 'developer'] %}
    {{- '<|turn>system\n' }}{%- if enable_thinking %}{{- '<|think|>' }}{%- endif %}
    {%- if messages[0].role in ['system', 'developer'] %}
        {{- messages[0].content | trim }}{%- set loop_messages = messages[1:] %}
    {%- endif %}
    {%- for tool in tools or [] %}{{- '<|tool>declaration:' + tool.function.name + written(tool.function) + '<tool|>' }}{%- endfor %}
    {{- '<turn|>\n' }}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<|tool_call>call:' + call.function.name + '{' }}
        {%- if call.function.arguments is mapping %}
            {%- for key, value in call.function.arguments | dictsort %}{{- key + ':' + written(value) }}{{- ',' if not loop.last }}{%- endfor %}
        {%- elif call.function.arguments is string %}{{- call.function.arguments }}{%- endif %}
        {{- '}<tool_call|>' }}
    {%- endfor %}
    {%- if message.content is string %}{{- message.content | trim }}
    {%- elif message.content is sequence %}
        {%- for item in message.content %}{%- if item.type == 'text' %}{{- item.text | trim }}{%- endif %}{%- endfor %}
    {%- endif %}
    {{- '<turn|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn>model\n' }}{%- if not enable_thinking | default(false) %}{{- '<|channel>thought\n<channel|>' }}{%- endif %}
{%- endif %}"""

# Joins the arguments of calls as text, and takes no None (DeepSeek)
TEXT_ARGUMENTS = r"""{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}
{%- elif message['role'] == 'assistant' %}{{ '<|Assistant|>' + message['content'] }}
    {%- for tool in message['tool_calls'] or [] %}
        {{- '<|tool_sep|>' + tool['function']['name'] + '\n' + tool['function']['arguments'] }}
    {%- endfor %}{{ '<|end|>' }}
{%- else %}{{ '<|' + message['role'] + '|>' + message['content'] }}{%- endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"""

# Takes lists of parts alone (SmolVLM)
PARTS_ONLY = r"""<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:
{%- for line in message['content'] %}{% if line['type'] == 'text' %} {{ line['text'] }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""

FAMILIES = {
    "qwen": QWEN,
    "qwen3.5": QWEN35,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral small": MISTRAL_SMALL,
    "gemma": GEMMA,
    "gemma4": GEMMA4,
    "harmony": HARMONY,
    "text arguments": TEXT_ARGUMENTS,
    "parts only": PARTS_ONLY,
}
