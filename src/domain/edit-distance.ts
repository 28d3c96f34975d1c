/** The number of characters to insert, delete or replace that turns one text into another (Levenshtein). */
export function editDistance(one: string, other: string): number {
  let previous = Array.from({ length: other.length + 1 }, (_, index) => index)
  for (let row = 1; row <= one.length; row++) {
    const current = [row]
    for (let column = 1; column <= other.length; column++) {
      const replaced = (previous[column - 1] ?? 0) + (one[row - 1] === other[column - 1] ? 0 : 1)
      current.push(Math.min(replaced, (previous[column] ?? 0) + 1, (current[column - 1] ?? 0) + 1))
    }
    previous = current
  }
  return previous[other.length] ?? 0
}

/** Names that are this much longer or shorter than another one are no misspellings of it. */
const MISSPELT_MAX = 2

/** Whether a text looks like a misspelling of a name: at most two characters differ, and no more than a third of the name. */
export function isMisspelt(text: string, name: string): boolean {
  const max = Math.min(MISSPELT_MAX, Math.floor(name.length / 3))
  return Math.abs(text.length - name.length) <= max && editDistance(text.toLowerCase(), name.toLowerCase()) <= max
}

/** Those of the given names that a misspelled text may mean, the most similar first, at most `count`. */
export function nearestNames(text: string, names: readonly string[], count: number): readonly string[] {
  const wanted = text.toLowerCase()
  const most = Math.ceil(wanted.length * 0.4)
  return [...new Set(names)]
    .map((name) => ({ name, distance: distanceOf(wanted, name.toLowerCase()) }))
    .filter(({ distance }) => distance <= most)
    .toSorted((a, b) => a.distance - b.distance)
    .slice(0, count)
    .map(({ name }) => name)
}

function distanceOf(wanted: string, name: string): number {
  if (wanted.length > 2 && name.includes(wanted)) return 1
  if (Math.abs(wanted.length - name.length) > wanted.length) return Infinity
  return editDistance(wanted, name)
}
