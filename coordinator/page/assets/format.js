// Values as people read them. Where a value is not known, the text says so: "–".

export const UNKNOWN = "–";
const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 1234567 → "1,234,567". */
export function whole(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en") : UNKNOWN;
}

/** 1, "client" → "1 client"; 2 → "2 clients". */
export function counted(value, word, ending = "s") {
  return `${whole(value)} ${word}${value === 1 ? "" : ending}`;
}

const SCALES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** 1234567 → "1.23 M": three digits and the power of a thousand. */
export function short(value) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  for (const [scale, letter] of SCALES) {
    if (size >= scale * 0.9995) return `${Number((value / scale).toPrecision(3))} ${letter}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** 1234567 → "1.23 MB": in powers of a thousand. */
export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const text = short(value);
  return text.includes(" ") ? `${text}B` : `${text} B`;
}

/** 75.2 → "1 min 15 s"; 0.0123 → "12 ms". */
export function duration(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${Number((value * 1000).toPrecision(2))} ms`;
  if (value < 59.95) return `${Number(value.toPrecision(3))} s`;
  const seconds = Math.round(value);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  const [large, unit] = parts[first];
  const rest = first + 1 < parts.length ? Math.floor((seconds % large) / parts[first + 1][0]) : 0;
  return `${Math.floor(seconds / large)} ${unit}${rest ? ` ${rest} ${parts[first + 1][1]}` : ""}`;
}

/** 0.6123 → "61 %". */
export function percent(value) {
  return isKnown(value) ? `${Number((value * 100).toPrecision(value < 0.0995 ? 1 : 2))} %` : UNKNOWN;
}

/** A value with some digits, such as a loss: 3.14159 → "3.142". */
export function digits(value, places = 4) {
  return isKnown(value) ? String(Number(value.toPrecision(places))) : UNKNOWN;
}

/** Seconds since 1970 → date and time of day here, such as "2026-03-01 14:05:09". */
export function moment(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const at = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** As `moment`, without the date if that is today: "14:05:09". */
export function clock(seconds) {
  const text = moment(seconds);
  return text.startsWith(moment(Date.now() / 1000).slice(0, 10)) ? text.slice(11) : text;
}

/** The time zone of the times that are shown, such as "Europe/Berlin (UTC+1)". */
export function timeZone(at = new Date()) {
  const minutes = -at.getTimezoneOffset(), size = Math.abs(minutes);
  const offset = `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${size % 60 ? `:${String(size % 60).padStart(2, "0")}` : ""}`;
  const { timeZone: name } = Intl.DateTimeFormat().resolvedOptions();
  return name && name !== "UTC" ? `${name} (${offset})` : "UTC";
}

const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** Text that somebody else has written, with escapes for characters that are not seen, or that turn others around. */
export function visible(text) {
  return String(text).replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** The beginning of an id, as it is shown where it must be short. */
export function shortId(id) {
  return id.slice(0, 12);
}

const ATTEMPTS_OF_A_BRANCH = 1_000_000_000; // as state/documents.py says
const ORDINALS = ["second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"];

/** Return a round as people read it: "step 14", or "step 14, second try"; `attempt` numbers the tries, from a branch's first on. */
export function stepWords({ step, attempt: numbered }) {
  const attempt = numbered % ATTEMPTS_OF_A_BRANCH;
  if (!attempt) return `step ${whole(step)}`;
  return `step ${whole(step)}, ${attempt <= ORDINALS.length ? `${ORDINALS[attempt - 1]} try` : `try ${attempt + 1}`}`;
}
