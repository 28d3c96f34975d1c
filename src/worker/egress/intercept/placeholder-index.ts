import { makeWordAutomaton, type WordAutomaton } from './word-automaton.ts'

/** Finds many placeholders in Latin-1 text at once. */
export type PlaceholderIndex = {
  readonly placeholders: readonly string[]
  /**
   * Calls `visit` for the placeholders that begin at each place of a text, with their numbers in the list: from right to left, and of those
   * that begin at one place the longest first, until it returns true.
   */
  search(text: string, visit: (nth: number, start: number) => boolean): void
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
  let forwards: WordAutomaton | null = null
  return {
    placeholders,
    search(text, visit) {
      let node = 0
      for (let at = text.length - 1; at >= 0; at -= 1) {
        node = backwards.follow(node, text.charCodeAt(at))
        if (node !== 0) backwards.forEachWord(node, (nth) => visit(nth, at))
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
