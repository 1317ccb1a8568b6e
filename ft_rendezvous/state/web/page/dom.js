// Elements. Data of a run is user data: it reaches the page only as text.

export const at = (id) => document.getElementById(id);

export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "class") element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// Text is set only where it changed: a selection stays, and a screen reader does not repeat it.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

// [label, value] pairs as a list of terms; pairs without a value are left out. A value may be an element.
export function terms(pairs) {
  const list = make("dl", { class: "terms" });
  for (const [label, value, className] of pairs) {
    if (value == null || value === "") continue;
    list.append(make("dt", {}, label), make("dd", { class: className ?? "" }, value));
  }
  return list;
}

// A path or an address that one wants to copy.
export function copyable(text) {
  const button = make("button", { type: "button", class: "copy", "aria-label": `copy ${text}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      // Without https there is no clipboard: select it, so that one keystroke copies it.
      getSelection().selectAllChildren(button.previousSibling);
    }
  });
  return make("span", { class: "copyable" }, make("code", {}, text), button);
}
