import assert from 'node:assert/strict'
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** The folder of the repository. */
export const ROOT = join(import.meta.dirname, '../..')

/** One fenced code block: its language, the words after the language, and the line on which it begins. */
export type Block = {
  readonly language: string
  readonly words: readonly string[]
  readonly line: number
  readonly text: string
}

/** One command of a `console` block with the output that the document shows for it. */
export type Shown = { readonly command: string; readonly output: readonly string[]; readonly line: number }

/** Every document of the repository, as paths from its root. */
export function documents(): readonly string[] {
  return globSync(['*.md', 'docs/**/*.md'], { cwd: ROOT }).toSorted()
}

/** The text of a document, named by its path from the root. */
export function readDocument(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8')
}

/** A text in backticks, and its place as `path:line`. */
export type Mention = { readonly where: string; readonly text: string }

/** The texts in backticks in the prose of all documents. */
export function mentions(): readonly Mention[] {
  return documents().flatMap((path) =>
    proseOf(readDocument(path))
      .split('\n')
      .flatMap((row, index) =>
        [...row.matchAll(/`([^`]+)`/g)].map(([, text = '']) => ({ where: `${path}:${String(index + 1)}`, text })),
      ),
  )
}

/** Asserts that a list of faults is empty, and prints all of them otherwise. */
export function assertNone(faults: readonly string[], what: string): void {
  assert.equal(faults.length, 0, `${what}:\n  ${faults.join('\n  ')}`)
}

/** A table in Markdown. */
export function table(rows: readonly (readonly string[])[]): string {
  return rows.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}

/**
 * Asserts that a section of a document is equal to the generated text. With `UPDATE_DOCS=1` it rewrites the section
 * instead.
 */
export function checkSection(path: string, section: string, rendered: string): void {
  const [begin, end] = [`<!-- ${section}:begin -->`, `<!-- ${section}:end -->`]
  const text = readDocument(path)
  const from = text.indexOf(begin) + begin.length
  const to = text.indexOf(end)
  assert.ok(from >= begin.length && to >= from, `${path} has no section ${section}`)
  if (process.env['UPDATE_DOCS'] === '1') {
    writeFileSync(join(ROOT, path), `${text.slice(0, from)}\n${rendered}\n${text.slice(to)}`)
    return
  }
  const hint = 'run UPDATE_DOCS=1 npm test -- test/docs.test.ts'
  assert.equal(text.slice(from, to).trim(), rendered, `${path}: the table of ${section} is out of date: ${hint}`)
}

/** The fenced code blocks of a document in order. */
export function blocksOf(text: string): readonly Block[] {
  const blocks: Block[] = []
  const lines = text.split('\n')
  for (let i = 0; i < lines.length; i += 1) {
    const fence = /^```(.*)$/.exec(lines[i] ?? '')
    if (fence === null) continue
    const [language = '', ...words] = (fence[1] ?? '').trim().split(/\s+/)
    const end = lines.indexOf('```', i + 1)
    if (end < 0) throw new Error(`the code block of line ${String(i + 1)} has no end`)
    blocks.push({ language, words, line: i + 1, text: lines.slice(i + 1, end).join('\n') })
    i = end
  }
  return blocks
}

/** A document in which the lines of code blocks are empty, so that the others keep their line numbers. */
export function proseOf(text: string): string {
  return text.replaceAll(/^```.*?^```$/gms, (block) => block.replaceAll(/[^\n]/g, ''))
}

/**
 * The commands of a `console` block. A line that begins with `$ ` is a command. A command that ends with a backslash
 * continues in the next line. The lines up to the next command are the output.
 */
export function commandsOf({ text, line }: Block): readonly Shown[] {
  const shown: { command: string; output: string[]; line: number }[] = []
  let isOpen = false
  for (const [index, row] of text.split('\n').entries()) {
    const last = shown.at(-1)
    if (isOpen && last !== undefined) last.command += `\n${row}`
    else if (row.startsWith('$ ')) shown.push({ command: row.slice(2), output: [], line: line + 1 + index })
    else if (last === undefined)
      throw new Error(`line ${String(line + 1 + index)}: a console block begins with a command`)
    else last.output.push(row)
    isOpen = row.endsWith('\\')
  }
  return shown
}

/**
 * Whether real output matches the output that a document shows. In the document, `…` stands for any text within a line,
 * and `…` alone in a line for any number of lines. Several spaces count as one, so that columns may be aligned. The
 * public client appends the duration of a slow step to a line with ✓; the comparison ignores that duration.
 */
export function matchesOutput(shown: readonly string[], real: string): boolean {
  const lines = real.split('\n').map((row) => squeeze(row).replace(/^(✓ .*) \(\d+(\.\d+)?s\)$/, '$1'))
  while (lines.at(-1) === '') lines.pop()
  const pattern = shown.map((row) => {
    if (row.trim() === '…') return '(?:[^\\n]*\\n)*'
    const parts = squeeze(row)
      .replace(/ …$/, '')
      .split('…')
      .map((part) => RegExp.escape(part))
    return `${parts.join('[^\\n]*')}${squeeze(row).endsWith(' …') ? '(?: [^\\n]*)?' : ''}\\n`
  })
  return new RegExp(`^${pattern.join('')}$`).test(lines.map((row) => `${row}\n`).join(''))
}

function squeeze(row: string): string {
  return row.replaceAll(/\s+/g, ' ').trim()
}
