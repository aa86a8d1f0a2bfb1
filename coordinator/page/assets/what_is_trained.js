// What the run trains, by its configuration: in a line, and whole, as a state file has it.

import { bytes, short, visible, whole } from "./format.js";

const DATA = {
  "made up": "made-up tokens", server: "data server", http: "token files", bucket: "token files in", files: "token files", rows: "files of samples",
  mixture: "a mixture of data sets",
};
const MODELS = { EpochalNgram: "n-gram", HfLlama: "Llama", HfDeepseek: "DeepSeek", Custom: "a model of its own" };
const PASSWORD = /(:\/\/)[^/@\s]*@/g; // what stands before the host of a URL

/** Return what is trained as a list of short texts: model, size, data, sample, tokenizer. What is not known is left out. */
export function trainedWords(config, guide) {
  const model = config?.model?.LLM;
  if (model === undefined) return [];
  const count = guide?.room?.parameter_count;
  const words = [`${MODELS[model.architecture] ?? visible(model.architecture)}${count === undefined ? "" : ` of ${short(count)} parameters`}`];
  if (guide) {
    const { kind, places, place_count: all } = guide.data;
    words.push([DATA[kind] ?? visible(kind), ...places.slice(0, 1).map(visible), all > 1 ? `and ${whole(all - 1)} more` : ""].filter(Boolean).join(" "));
  }
  words.push(`${whole(model.max_seq_len)} tokens a sample`);
  if (model.tokenizer) words.push(`tokenizer ${visible(model.tokenizer).slice(0, 12)}…`);
  if (guide?.room) words.push(`${bytes(guide.room.result_bytes)} a result`);
  return words;
}

/** Return a configuration as TOML, without values that are not set, and without passwords in addresses. */
export function tomlOf(table, names = []) {
  const [plain, tables] = [[], []];
  for (const [name, value] of Object.entries(table)) {
    if (value === null) continue;
    (isTable(value) ? tables : plain).push([name, value]);
  }
  const head = names.length && plain.length ? [`[${names.map(keyOf).join(".")}]`] : [];
  const lines = [...head, ...plain.map(([name, value]) => `${keyOf(name)} = ${valueOf(value)}`)];
  const own = lines.length ? [lines.join("\n")] : names.length && !tables.length ? [`[${names.map(keyOf).join(".")}]`] : [];
  return [...own, ...tables.map(([name, value]) => tomlOf(value, [...names, name]))].filter(Boolean).join("\n\n");
}

const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const keyOf = (name) => (/^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name));

function valueOf(value) {
  if (Array.isArray(value)) return `[${value.map(valueOf).join(", ")}]`;
  if (isTable(value)) return `{ ${Object.entries(value).filter(([, found]) => found !== null).map(([name, found]) => `${keyOf(name)} = ${valueOf(found)}`).join(", ")} }`;
  return typeof value === "string" ? JSON.stringify(visible(value).replaceAll(PASSWORD, "$1…@")) : String(value);
}
