"""Waiting for the live page in a browser, and the numbers of a page that computes its model."""

import time

SECONDS = 60  # for an answer
# Maps the ids of a source and the ids that the decoder reads to logits.
LOGITS = """((source, read) => {
  const { model } = inPage.answers;
  const run = { off: new Set(), record: null };
  let state = model.begin(source, run);
  return read.map((token) => {
    const [logits, next] = model.step(state, token, run);
    state = next;
    return [...logits];
  });
})"""


def wait(page, condition):
    """Waits until a condition in JavaScript is true."""
    deadline = time.monotonic() + SECONDS
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, (condition, page.evaluate("byId('live-status').textContent"))
        time.sleep(0.01)


def wait_for_model(page):
    """Waits until a page that contains its model has drawn its first examples."""
    wait(page, "typeof startLive === 'function'")


def wait_for_answer(page, condition):
    """Waits until the page has the answer to its last request, and a condition is true."""
    wait(page, f"pending === null && ({condition})")


def logits_of_page(page, source, read):
    """Returns the logits that the model of a page computes for ids, EOS and BOS included."""
    return page.evaluate(f"{LOGITS}({list(source)}, {list(read)})")
