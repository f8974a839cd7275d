"""What Codex CLI sends, written after its source (codex-rs, Apache-2.0)."""

# The forms of a patch that it takes
PATCH_GRAMMAR = """\
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCH = """\
*** Begin Patch
*** Update File: src/main.py
@@ def main():
-    print("hi")
+    print("hello")
*** End Patch
"""
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files. This is a FREEFORM tool.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
GITHUB = {
    "type": "namespace",
    "name": "mcp__github",
    "description": "Tools of the MCP server github.",
    "tools": [
        {
            "type": "function",
            "name": "search_issues",
            "description": "Searches issues.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
            },
        },
        {"type": "custom", "name": "comment", "format": {"type": "text"}},
    ],
}
