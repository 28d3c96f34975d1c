import { makeWordAutomaton, type WordAutomaton } from './word-automaton.ts'

const NONE = -1

/** Finds many placeholders in Latin-1 text at once. */
export type PlaceholderIndex = {
  readonly placeholders: readonly string[]
  /**
   * Calls `visit` for the wanted placeholders that begin at each place of a text: from right to left, and of those that begin at one place
   * the longest first, until it returns true. `isWanted` is asked anew after it has returned false.
   */
  search(text: string, isWanted: (nth: number) => boolean, visit: (nth: number, start: number) => boolean): void
  /** The lengths of a text's ends with which a longer placeholder begins, the longest first. */
  beginsAtEnd(text: string): Iterable<number>
}

/**
 * Creates an index. The time of a search grows with the length of the text alone. To look for one placeholder after the other took V8 up to
 * 10 ms for each in 64 KiB, and a sandbox may have 256 of them (2026-11).
 */
export function makePlaceholderIndex(placeholders: readonly string[]): PlaceholderIndex {
  // Read backwards, the longest placeholder that begins at a place is the longest word that ends there.
  const backwards = makeWordAutomaton(
    placeholders.map((one) => Buffer.from(one, 'latin1').reverse().toString('latin1')),
  )
  const longest = Math.max(0, ...placeholders.map(({ length }) => length))
  const shortestFirst = [...placeholders.keys()].sort((a, b) => lengthOf(a) - lengthOf(b))
  let forwards: WordAutomaton | null = null

  function lengthOf(nth: number): number {
    return placeholders[nth]?.length ?? 0
  }

  /**
   * For each placeholder, the longest wanted one with which it begins: itself, a shorter one, or none. 256 of them may begin with each
   * other. To visit all at each place took 160 to 310 ms for 64 KiB (2026-11).
   */
  function selectWanted(isWanted: (nth: number) => boolean): Int32Array {
    const wanted = new Int32Array(placeholders.length)
    for (const nth of shortestFirst) wanted[nth] = isWanted(nth) ? nth : (wanted[backwards.shorterWord(nth)] ?? NONE)
    return wanted
  }

  return {
    placeholders,
    search(text, isWanted, visit) {
      let node = 0
      let wanted: Int32Array | null = null
      for (let at = text.length - 1; at >= 0; at -= 1) {
        node = backwards.follow(node, text.charCodeAt(at))
        let nth = node === 0 ? NONE : backwards.longestWord(node)
        while (nth !== NONE) {
          wanted ??= selectWanted(isWanted)
          nth = wanted[nth] ?? NONE
          if (nth === NONE || visit(nth, at)) break
          wanted = null
          nth = backwards.shorterWord(nth)
        }
      }
    },
    beginsAtEnd(text) {
      forwards ??= makeWordAutomaton(placeholders) // only bodies need it
      let node = 0
      for (let at = Math.max(0, text.length - longest); at < text.length; at += 1)
        node = forwards.follow(node, text.charCodeAt(at))
      return forwards.beginsAt(node)
    },
  }
}
