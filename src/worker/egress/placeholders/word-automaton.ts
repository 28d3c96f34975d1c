/** How many children of a node are compared with a character, one after the other. */
const SIBLINGS_MAX = 8

/** Follows a Latin-1 text and knows which words end where. A node stands for the longest end of the text with which a word begins. */
export type WordAutomaton = {
  /** The node after a character. The first one is 0. */
  follow(node: number, code: number): number
  /** The number of the longest word that ends at a node, or -1. */
  longestWord(node: number): number
  /** The number of the longest shorter word that ends a word, or -1. */
  shorterWord(nth: number): number
  /** The lengths of the ends of the text with which a longer word begins, the longest first. */
  beginsAt(node: number): Iterable<number>
}

/**
 * Creates the automaton of Aho and Corasick: a tree of words, of which each node knows the longest other node that is an end of its text. The
 * time to follow a text doesn't depend on the number of words, nor on what they have in common. A character of a word takes 28 bytes.
 */
export function makeWordAutomaton(words: readonly string[]): WordAutomaton {
  const size = words.reduce((sum, { length }) => sum + length, 1)
  const [codes, firstChild, nextSibling] = [new Int32Array(size), new Int32Array(size), new Int32Array(size)]
  /** The nearest end of a node's text that is a node, and the nearest one at which a word ends. */
  const [nearestEnd, nearestWord] = [new Int32Array(size), new Int32Array(size)]
  /** The length of a node's text, and the number of the word that ends there plus one. */
  const [lengths, wordAt] = [new Int32Array(size), new Int32Array(size)]
  const nodeOf = new Int32Array(words.length)
  /** The children of nodes that have many, by their characters. */
  const rows = new Map<number, Int32Array>()
  let nodes = 1

  for (const [nth, word] of words.entries()) {
    let node = 0
    for (let at = 0; at < word.length; at += 1) {
      const code = word.charCodeAt(at)
      node = childOf(node, code) || addChild(node, code)
    }
    if (node !== 0) wordAt[node] = nth + 1
    nodeOf[nth] = node
  }
  linkEnds()

  return {
    follow,
    longestWord: (node) => (read(wordAt, node) || read(wordAt, read(nearestWord, node))) - 1,
    shorterWord: (nth) => read(wordAt, read(nearestWord, read(nodeOf, nth))) - 1,
    *beginsAt(node) {
      for (let at = node; at !== 0; at = read(nearestEnd, at)) if (read(firstChild, at) !== 0) yield read(lengths, at)
    },
  }

  function follow(from: number, code: number): number {
    let node = from
    for (;;) {
      const child = childOf(node, code)
      if (child !== 0 || node === 0) return child
      node = read(nearestEnd, node)
    }
  }

  function childOf(node: number, code: number): number {
    let child = read(firstChild, node)
    for (let walked = 0; child !== 0 && read(codes, child) !== code; walked += 1) {
      if (walked === SIBLINGS_MAX) return read(rows.get(node) ?? makeRow(node), code)
      child = read(nextSibling, child)
    }
    return child
  }

  function makeRow(node: number): Int32Array {
    const row = new Int32Array(256)
    for (let child = read(firstChild, node); child !== 0; child = read(nextSibling, child))
      row[read(codes, child)] = child
    rows.set(node, row)
    return row
  }

  function addChild(node: number, code: number): number {
    const child = nodes
    nodes += 1
    codes[child] = code
    lengths[child] = read(lengths, node) + 1
    nextSibling[child] = read(firstChild, node)
    firstChild[node] = child
    const row = rows.get(node)
    if (row !== undefined) row[code] = child
    return child
  }

  /** Links the nodes level by level, because the links of a node follow from those of its parent. */
  function linkEnds(): void {
    const queue = new Int32Array(nodes)
    let filled = 1
    for (let at = 0; at < filled; at += 1) {
      const parent = read(queue, at)
      for (let node = read(firstChild, parent); node !== 0; node = read(nextSibling, node)) {
        queue[filled] = node
        filled += 1
        const end = parent === 0 ? 0 : follow(read(nearestEnd, parent), read(codes, node))
        nearestEnd[node] = end
        nearestWord[node] = read(wordAt, end) === 0 ? read(nearestWord, end) : end
      }
    }
  }
}

function read(numbers: Int32Array, at: number): number {
  return numbers[at] ?? 0
}
