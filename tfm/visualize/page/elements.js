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

const ruler = document.createElement("canvas").getContext("2d");

/** The width of a text of a drawing in pixels. Active tokens are bold, which is wider. */
function textWidth(text, size = 13) {
  ruler.font = `600 ${size}px system-ui, sans-serif`;
  return ruler.measureText(text).width;
}

const longestOf = (labels, size) => Math.max(0, ...labels.map((label) => textWidth(label, size)));

/** The beginning of a text that is at most so many pixels wide. No character is divided, such as a flag. */
function cut(text, width, size = 13) {
  if (textWidth(text, size) <= width) return isolate(text);
  const characters = Array.from(new Intl.Segmenter().segment(text), ({ segment }) => segment);
  let length = characters.length - 1;
  const begin = () => `${characters.slice(0, length).join("")}…`;
  while (length > 1 && textWidth(begin(), size) > width) length--;
  return isolate(begin());
}

const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** The direction of a row of texts: that of its first letter. */
function directionOf(texts) {
  const [letter] = texts.join(" ").match(/\p{L}/u) || [""];
  return RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}

/** A text that does not reorder what stands around it: text from right to left would move numbers and commas. */
const isolate = (text) => (RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text);
