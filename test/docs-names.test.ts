import assert from 'node:assert/strict'
import type { Command } from 'commander'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { test } from 'node:test'
import { makeProgram } from '../src/cli/program.ts'
import { tryCommand } from '../src/lib/run-command.ts'
import { assertNone, blocksOf, documents, mentions, readDocument, ROOT } from './support/documents.ts'

// Documents may name only files, functions and identifiers that exist.

const MENTIONS = mentions()
const FILES = globSync('**/*', { cwd: ROOT, exclude: (path) => ['node_modules', '.git', '.setup'].includes(path) })
const BASENAMES = new Set(FILES.map((path) => basename(path)))
const SOURCES = FILES.filter((path) =>
  /^(src|dashboard|test|bench|setup|packaging|migrations|\.ci)\/.*\.(tsx?|mjs|pl|pm|sql|json|sh|yml)$|^[^/]*\.(json|sql)$|^\.ci\/run$|^setup\/sandyard$/.test(
    path,
  ),
)
const SOURCE_TEXT = SOURCES.map((path) => readFileSync(join(ROOT, path), 'utf8')).join('\n')
const SOURCE_WORDS = new Set(SOURCE_TEXT.match(/[\w$]+/g))
/** Folder names with which a path in a document may begin: folders of the root, of `src`, of `test` or of a module of `src`. */
const FOLDERS = new Set(
  FILES.filter((path) => /^(src\/|test\/)?(\w+\/)?[\w.-]+$/.test(path)).flatMap((path) => path.split('/').slice(0, -1)),
)

test('every file that a document names in backticks exists', () => {
  const faults = MENTIONS.filter(({ where, text }) => {
    if (!/^[\w.@*-]+(\/[\w.@*-]+)*\/?$/.test(text)) return false
    const isFile = /\.(ts|mjs|pl|pm|md|sql)$/.test(text)
    if (!text.includes('/')) return isFile && !text.includes('*') && !BASENAMES.has(text)
    if (!isFile && !FOLDERS.has(text.split('/')[0] ?? '')) return false
    const bases = ['', 'src', 'test', 'docs', 'src/worker', dirname(where)]
    return !bases.some((base) => globSync(join(base, text), { cwd: ROOT }).length > 0)
  })
  assertNone(
    faults.map(({ where, text }) => `${where}: ${text}`),
    'no such file',
  )
})

test('every function that a document names as `name()` exists', () => {
  const faults = MENTIONS.filter(({ text }) => {
    const [, name] = /^(?:[\w$]+\.)*([\w$]+)\([^)]*\)$/.exec(text) ?? []
    return name !== undefined && !new RegExp(`\\b${RegExp.escape(name)}(<[^>]*>)?\\(`).test(SOURCE_TEXT)
  })
  assertNone(
    faults.map(({ where, text }) => `${where}: ${text}`),
    'no such function',
  )
})

/** Names from PostgreSQL, Linux and Node that documents mention but the sources don't use. */
const FOREIGN_WORDS = new Set([
  'CONFIG_QFMT_V2',
  'CONFIG_XFS_QUOTA',
  'NODE_EXTRA_CA_CERTS',
  'default_toast_compression',
  'no_new_privs',
  'toast_tuple_target',
  'wal_init_zero',
  'work_mem',
])

test('every identifier and variable that a document names in backticks occurs in the sources', () => {
  const faults = MENTIONS.filter(({ text }) => {
    const isIdentifier = /^[\w$]+(\.[\w$]+)*$/.test(text) && /[a-z0-9][A-Z]|_/.test(text)
    const variable = /^([A-Z][A-Z0-9]*_[A-Z0-9_]+)(=|$)/.exec(text)?.[1]
    const words = variable === undefined ? (isIdentifier ? text.split('.') : []) : [variable]
    return !words.every((word) => SOURCE_WORDS.has(word) || FOREIGN_WORDS.has(word))
  })
  assertNone(
    faults.map(({ where, text }) => `${where}: ${text}`),
    'the sources have no such word',
  )
})

test('every link leads to a file and a heading that exist', () => {
  const faults = documents().flatMap((path) =>
    [...readDocument(path).matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)/g)].flatMap(
      ([link, target = '', anchor]) => {
        const file = target === '' ? path : join(dirname(path), target)
        if (!existsSync(join(ROOT, file))) return [`${path}: ${link}`]
        if (anchor === undefined) return []
        const headings = [...readDocument(file).matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) => slugOf(heading))
        return headings.includes(anchor) ? [] : [`${path}: ${link}`]
      },
    ),
  )
  assertNone(faults, 'links that lead nowhere')
})

/** The anchor that GitHub gives a heading. */
function slugOf(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\w\- ]/g, '')
    .replaceAll(' ', '-')
}

test('every JSON example can be parsed', () => {
  for (const path of documents()) {
    for (const { language, text, line } of blocksOf(readDocument(path))) {
      if (language === 'json') assert.doesNotThrow(() => void JSON.parse(text), `${path}:${String(line)}`)
    }
  }
})

/** A command of `sandyard` or `msb` in a document: its words up to the first flag, and its flags before `--`. */
type Call = { readonly where: string; readonly words: readonly string[]; readonly flags: readonly string[] }

/** Every command line of a program in the shell blocks and backticks of the documents. */
function callsOf(program: 'sandyard' | 'msb'): readonly Call[] {
  const shell = documents().flatMap((path) =>
    blocksOf(readDocument(path))
      .filter(({ language }) => ['sh', 'console'].includes(language))
      .flatMap(({ text, line }) =>
        text.split('\n').map((row, index) => ({ where: `${path}:${String(line + 1 + index)}`, text: row })),
      ),
  )
  return [...shell, ...MENTIONS].flatMap(({ where, text }) =>
    [...text.matchAll(new RegExp(`(?:^|[ (])${program} ([^|;&>#)]*)`, 'g'))].map(([, rest = '']) => {
      const words = rest.trim().split(/\s+/)
      const own = words.includes('--') ? words.slice(0, words.indexOf('--')) : words
      const firstFlag = own.findIndex((word) => word.startsWith('-'))
      const flags = own.flatMap((word) => /^--[a-z][a-z-]*/.exec(word) ?? [])
      return { where, words: own.slice(0, firstFlag < 0 ? undefined : firstFlag), flags }
    }),
  )
}

test('every `sandyard` command and flag that a document shows exists', async () => {
  const program = await makeProgram(['completion']) // `completion` loads all commands
  const faults = callsOf('sandyard').flatMap(({ where, words, flags }) => {
    const find = (parent: Command, word: string | undefined): Command | undefined =>
      parent.commands.find((one) => one.name() === word)
    const command = words.length === 0 ? program : find(program, words[0])
    if (command === undefined) return [`${where}: no command ${words.join(' ')}`]
    const sub = find(command, words[1])
    if (sub === undefined && command.registeredArguments.length === 0 && words.length > 1)
      return [`${where}: no command ${words.join(' ')}`]
    const known = [program, command, ...(sub === undefined ? [] : [sub])]
      .flatMap(({ options }) => options.map(({ long }) => long))
      .concat('--help')
    return flags.filter((flag) => !known.includes(flag)).map((flag) => `${where}: ${words.join(' ')} has no ${flag}`)
  })
  assertNone(faults, 'see `sandyard --help`')
})

const MSB = join(ROOT, 'node_modules/.bin/msb')

test('every `msb` command and flag that a document shows exists', { skip: whyNoMsb() }, async () => {
  const calls = callsOf('msb').filter(({ words }) => /^[a-z]+$/.test(words[0] ?? ''))
  const commands = Map.groupBy(calls, ({ words }) => words.slice(0, words[0] === 'volume' ? 2 : 1).join(' '))
  const faults: string[] = []
  for (const [command, all] of commands) {
    const { code, stdout } = await tryCommand(process.execPath, [MSB, ...command.split(' '), '--help'], {
      timeoutMs: 30_000,
    })
    for (const { where, flags } of all) {
      if (code !== 0) faults.push(`${where}: no command ${command}`)
      else
        faults.push(
          ...flags.filter((flag) => !stdout.includes(flag)).map((flag) => `${where}: ${command} has no ${flag}`),
        )
    }
  }
  assertNone(faults, 'see `msb --help`')
})

function whyNoMsb(): string | false {
  return existsSync(MSB) ? false : 'the public client is not installed for this platform'
}

test('every npm script that a document names exists', () => {
  const { scripts } = JSON.parse(readDocument('package.json')) as { readonly scripts: Readonly<Record<string, string>> }
  const faults = documents().flatMap((path) =>
    [...readDocument(path).matchAll(/\bnpm run (?:--silent )?([\w:-]+)/g)]
      .filter(([, name = '']) => !(name in scripts))
      .map(([text]) => `${path}: ${text}`),
  )
  assertNone(faults, 'no such script')
})

test('no document names a path that exists only on the machine of its author', () => {
  const faults = documents().flatMap((path) =>
    readDocument(path)
      .split('\n')
      .flatMap((row, index) =>
        /\.\.\/shared|(^|[\s`(])\/work\/|\/tmp\/tools/.test(row) ? [`${path}:${String(index + 1)}: ${row}`] : [],
      ),
  )
  assertNone(faults, 'not in the repository')
})
