// Questions to the studio's server: JSON both ways, and sentences for whatever goes wrong.

const problem = document.getElementById("problem");
problem.querySelector("button").addEventListener("click", () => { problem.hidden = true; });

// Shows a sentence until it is closed, or until what it was about goes well.
export function tell(sentence, about = "") {
  problem.querySelector("p").textContent = sentence;
  problem.dataset.about = about;
  problem.hidden = false;
}

export function settle(about) {
  if (problem.dataset.about === about) problem.hidden = true;
}

// What the server refused: its message is a sentence for the user.
export class Refusal extends Error {}

// Tells a refusal; anything else is a mistake of this page, which belongs on the console.
export function tellOf(error, about) {
  if (error instanceof Refusal) tell(error.message, about);
  else reportError(error);
}

// The answer to a question; what is refused is thrown as a Refusal.
export async function ask(path, question) {
  const how = question === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question),
  };
  let reply;
  try {
    reply = await fetch(path, how);
  } catch {
    throw new Refusal("The studio does not answer. Look whether it still runs in the terminal, and start it again.");
  }
  let answer = null;
  try { answer = await reply.json(); } catch { /* no JSON: the status says enough */ }
  if (!reply.ok || answer === null) {
    throw new Refusal(answer?.error ?? `The studio answered with status ${reply.status}. Reload the page.`);
  }
  return answer;
}

// One question on its way at a time; of those that come meanwhile only the latest is asked.
export class Latest {
  // `place` is marked as busy for those who wait for it: screen readers, and tests.
  constructor(path, place, answered) {
    Object.assign(this, { path, place, answered });
    this.waiting = null;
    this.busy = false;
    this.place.setAttribute("aria-busy", "false");
  }

  async want(question, about) {
    this.waiting = { question, about };
    if (this.busy) return;
    this.busy = true;
    this.place.setAttribute("aria-busy", "true");
    while (this.waiting !== null) {
      const now = this.waiting;
      this.waiting = null;
      try {
        const answer = await ask(this.path, now.question);
        settle(this.path);
        this.answered(answer, now.about);
      } catch (error) {
        if (this.waiting === null || !(error instanceof Refusal)) tellOf(error, this.path);
      }
    }
    this.busy = false;
    this.place.setAttribute("aria-busy", "false");
  }

  get idle() {
    return this.waiting === null;
  }
}
