// What eslint holds the page's modules to. Formatting is left to people; mistakes are not.
import js from "@eslint/js";
import globals from "globals";

const noMarkup = "Text goes into text nodes: hostile text must never become markup.";

export default [
  js.configs.recommended,
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: { ...globals.browser, ...globals.worker } },
    rules: {
      eqeqeq: "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-script-url": "error",
      "no-unused-expressions": "off", // reading a signal's value is how a component asks to be redrawn
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_", caughtErrors: "none" }],
      "no-var": "error",
      "prefer-const": "error",
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({ property, message: noMarkup })),
      ],
      "no-restricted-syntax": [
        "error",
        { selector: "TemplateElement[value.raw=/dangerouslySetInnerHTML/]", message: noMarkup },
        { selector: "Identifier[name='dangerouslySetInnerHTML']", message: noMarkup },
        { selector: "CallExpression[callee.property.name='write'][callee.object.name='document']", message: noMarkup },
      ],
    },
  },
  { files: ["tests/page/**"], languageOptions: { globals: globals.node } },
  { ignores: ["**/vendor/**", "**/node_modules/**"] },
];
