// The pieces of a client's time in a round. Nothing is guessed: what a client does not say is a piece of its own.

/** What a client does until its result is there, in this order. */
const UNTIL_RESULT = ["document", "replica", "data", "train", "encode", "upload", "check"];
const SHORTEST_S = 1e-4;

/**
 * Return the pieces of a client's part of a round: [{ part, start, seconds, isOpen, isBeside }], in seconds since its
 * start. An open one goes on, and one beside others happened while they did.
 *
 * @param {Object} client its figures (ClientFigures).
 * @param {number} roundS when the round ended, or how long it is under way.
 * @param {boolean} isUnderWay whether it goes on: what has not come may still come.
 */
export function piecesOf(client, roundS, isUnderWay) {
  const pieces = [];
  let at = 0;
  const add = (part, seconds, isOpen = false) => {
    if (seconds > SHORTEST_S) pieces.push({ part, start: at, seconds, isOpen });
    at += Math.max(0, seconds);
  };
  const told = UNTIL_RESULT.reduce((sum, part) => sum + (client[`${part}_s`] ?? 0), 0);
  const isThere = client.delivered_s !== null;
  let left = isThere ? Math.max(0, client.delivered_s - told) : 0;
  for (const part of UNTIL_RESULT) {
    const seconds = client[`${part}_s`];
    if (seconds !== null) add(part, seconds);
    else if (left > 0) {
      // a client reports how long its upload took with its next result; the coordinator has seen both of its ends
      const isUpload = part === "upload" && client.committed_s !== null && client.document_s !== null;
      add(isUpload ? "upload" : "unknown", left);
      left = 0;
    }
  }
  if (left > 0) add("unknown", left);
  if (isThere) addAfterResult(client, roundS, pieces);
  else if (client.batches && isUnderWay) {
    at = Math.max(at, client.committed_s ?? 0);
    add(client.committed_s === null ? "unknown" : "upload", roundS - at, true);
  }
  return pieces;
}

function addAfterResult(client, roundS, pieces) {
  const add = (part, start, seconds) => {
    if (seconds === null || seconds <= SHORTEST_S) return;
    const isBeside = start < client.delivered_s; // such as fetching others' results while its own is sent
    pieces.push({ part, start: Math.max(0, start), seconds, isOpen: false, isBeside });
  };
  const { attested_s: attestedS, attest_s: attestS, download_s: downloadS, merge_s: mergeS } = client;
  let readyS = roundS;
  if (client.witness && attestedS !== null) { // a witness fetches the results before it attests them
    add("download", attestedS - (attestS ?? 0) - (downloadS ?? 0), downloadS);
    add("attest", attestedS - (attestS ?? 0), attestS);
  } else {
    add("download", roundS, downloadS);
    readyS += downloadS ?? 0;
  }
  add("merge", readyS, mergeS);
}

/** Return the piece of a client's time that took longest; null without any. */
export function longest(pieces) {
  return pieces.reduce((most, piece) => (most === null || piece.seconds > most.seconds ? piece : most), null);
}
