// ---- elements

const NAMESPACE = "http://www.w3.org/2000/svg";

function add(parent, tag, attributes = {}, text = null) {
  const element =
    parent instanceof SVGElement || tag === "svg"
      ? document.createElementNS(NAMESPACE, tag)
      : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return parent.appendChild(element);
}

const clear = (element) => (element.replaceChildren(), element);
const cut = (text, width) => {
  const most = Math.max(3, Math.floor(width / 7.4));
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
};
