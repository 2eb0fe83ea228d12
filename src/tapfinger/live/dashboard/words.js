// A command line as separate words, by the quoting rules of a POSIX shell and nothing else of it.

/** {words, fault, odd}: the words; what is wrong with the quotes; signs that a shell would have acted on. */
export function split(text) {
  const words = [];
  const odd = new Set();
  let word = null;
  let quote = null;
  for (let n = 0; n < text.length; n++) {
    const sign = text[n];
    if (quote === "'") {
      if (sign === "'") quote = null;
      else word += sign;
    } else if (sign === "\\" && (quote === null || '"\\$`'.includes(text[n + 1] ?? " "))) {
      if (n + 1 === text.length) return { words, fault: "A backslash at the end stands before nothing.", odd: [] };
      word = (word ?? "") + text[++n];
    } else if (quote === '"') {
      if (sign === '"') quote = null;
      else word += sign;
    } else if (sign === "'" || sign === '"') {
      quote = sign;
      word ??= "";
    } else if (/\s/.test(sign)) {
      if (word !== null) words.push(word);
      word = null;
    } else {
      if ("|&;<>$`*?".includes(sign)) odd.add(sign);
      word = (word ?? "") + sign;
    }
  }
  if (quote !== null) return { words, fault: `A quotation mark ${quote} is not closed.`, odd: [] };
  if (word !== null) words.push(word);
  return { words, fault: "", odd: [...odd] };
}
