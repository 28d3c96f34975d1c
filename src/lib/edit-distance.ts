/** How many letters must be inserted, deleted or replaced to turn one word into another (Levenshtein). For short words. */
export function editDistance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, at) => at)
  for (let line = 0; line < from.length; line++) {
    const next = [line + 1]
    for (let at = 0; at < to.length; at++) {
      const replaced = (row[at] ?? 0) + (from[line] === to[at] ? 0 : 1)
      next.push(Math.min(replaced, (row[at + 1] ?? 0) + 1, (next[at] ?? 0) + 1))
    }
    row = next
  }
  return row.at(-1) ?? 0
}
