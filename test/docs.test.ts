import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { test } from 'node:test'
import type { Command } from 'commander'
import { makeProgram } from '../src/cli/program.ts'
import { settingRows } from '../src/config.ts'
import { CHANNEL_ENDS } from '../src/contract/sandboxes/channel-ends.ts'
import { EVENT_TYPES } from '../src/domain/events/event-types.ts'
import { CAUSES } from '../src/domain/sandboxes/lifecycle.ts'
import { ABILITIES_TABLE } from '../src/domain/spec/required-abilities.ts'
import { MICROSANDBOX_ABILITIES } from '../src/worker/drivers/microsandbox/make-vm-config.ts'
import { OCI_ABILITIES } from '../src/worker/drivers/oci/run/probe.ts'
import { tryCommand } from '../src/lib/run-command.ts'
import { blocksOf, documents, proseOf, readDocument, ROOT } from './support/documents.ts'

// Tables that the program knows better than a document: `UPDATE_DOCS=1 npm test -- test/docs.test.ts` writes them anew.

function table(rows: readonly (readonly string[])[]): string {
  return rows.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}

const settings = table([
  ['variable', 'flag', 'default', 'unit', 'meaning'],
  ['---', '---', '---', '---', '---'],
  ...settingRows().map(([variable, flag, fallback, unit, meaning]) => [
    `\`${variable}\``,
    flag === '' ? '' : `\`${flag}\``,
    fallback === '' ? '' : `\`${fallback}\``,
    unit,
    meaning,
  ]),
])

const abilities = table([
  ['field', '`oci`', '`microsandbox`', 'what it asks for, or why nobody offers it'],
  ['---', '---', '---', '---'],
  ...ABILITIES_TABLE.map(({ ability, fields, meaning }) => [
    fields,
    ...[OCI_ABILITIES, MICROSANDBOX_ABILITIES].map((offered) =>
      ability !== null && offered.includes(ability) ? 'enforced' : '**refused**',
    ),
    meaning.replace(/^needs a worker that is capable of /, ''),
  ]),
])

const events = table([
  ['type', 'category', 'what happened', 'payload'],
  ['---', '---', '---', '---'],
  ...Object.entries(EVENT_TYPES).map(([type, { category, what, facts }]) => [
    `\`${type}\``,
    category,
    what,
    Object.entries(facts)
      .map(([name, kind]) => `\`${name}\` ${kind.replace(/\?$/, (mark) => (mark === '' ? '' : ', may be absent'))}`)
      .join('; '),
  ]),
])

const causes = table([
  ['cause', 'meaning'],
  ['---', '---'],
  ...Object.entries(CAUSES).map(([cause, meaning]) => [`\`${cause}\``, meaning]),
])

const channelEnds = table([
  ['code', 'reason', '`why`'],
  ['---', '---', '---'],
  ...Object.entries(CHANNEL_ENDS)
    .toSorted(([, a], [, b]) => a.code - b.code)
    .map(([why, { code, reason }]) => [String(code), reason, `\`${why}\``]),
])

/** Holds a section of a document to what the program renders for it, or writes it there when `UPDATE_DOCS` is 1. */
function checkSection(path: string, section: string, rendered: string): void {
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

test('docs/settings.md lists every setting as the program reads it', () => {
  checkSection('docs/settings.md', 'settings', settings)
})

test('docs/drivers.md says of every ability which driver enforces it and which refuses it', () => {
  checkSection('docs/drivers.md', 'abilities', abilities)
})

test('docs/events.md lists every type of audit event with the facts of its payload', () => {
  checkSection('docs/events.md', 'events', events)
})

test('docs/events.md lists every cause of a transition', () => {
  checkSection('docs/events.md', 'causes', causes)
})

test('docs/channels.md lists every end of a channel with its code', () => {
  checkSection('docs/channels.md', 'channel-ends', channelEnds)
})

test('the tables of limits show the defaults that the settings have', () => {
  const defaults = new Map(settingRows().map(([variable, , fallback]) => [variable, fallback]))
  const faults = ['docs/limits.md', 'docs/channels.md'].flatMap((path) =>
    readDocument(path)
      .split('\n')
      .filter((row) => row.startsWith('|'))
      .flatMap((row) => {
        const shown = new Set(row.replaceAll(/(?<=\d),(?=\d{3})/g, '').match(/\d+/g))
        const variables = [...row.matchAll(/`(SANDYARD_\w+)`/g)].map(([, variable = '']) => variable)
        return variables.filter((name) => !shown.has(defaults.get(name) ?? '')).map((name) => `${path}: ${name}`)
      }),
  )
  assertNone(faults, 'another default')
})

// What a document names exists. A document that names a symbol of the past misleads its reader.

const FILES = globSync('**/*', { cwd: ROOT, exclude: (path) => ['node_modules', '.git', '.setup'].includes(path) })
const BASENAMES = new Set(FILES.map((path) => basename(path)))
const SOURCES = FILES.filter((path) =>
  /^(src|test|bench|setup|migrations|\.ci)\/.*\.(ts|mjs|pl|pm|sql|json|sh)$|^[^/]*\.(json|sql)$|^\.ci\/run$|^setup\/sandyard$/.test(
    path,
  ),
)
const SOURCE_TEXT = SOURCES.map((path) => readFileSync(join(ROOT, path), 'utf8')).join('\n')
const SOURCE_WORDS = new Set(SOURCE_TEXT.match(/[\w$]+/g))
/** The first folders of a path as documents write it: from the root, or from `src`, `test` or a module of `src`. */
const FOLDERS = new Set(
  FILES.filter((path) => /^(src\/|test\/)?(\w+\/)?[\w.-]+$/.test(path)).flatMap((path) => path.split('/').slice(0, -1)),
)

type Mention = { readonly where: string; readonly text: string }

/** What stands between backticks in the prose of all documents. */
const MENTIONS: readonly Mention[] = documents().flatMap((path) =>
  proseOf(readDocument(path))
    .split('\n')
    .flatMap((row, index) =>
      [...row.matchAll(/`([^`]+)`/g)].map(([, text = '']) => ({ where: `${path}:${String(index + 1)}`, text })),
    ),
)

/** Asserts that no mention is at fault, and lists all that are. */
function assertNone(faults: readonly string[], what: string): void {
  assert.equal(faults.length, 0, `${what}:\n  ${faults.join('\n  ')}`)
}

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

/** Words of PostgreSQL, Linux and Node that documents name and the sources don't use. */
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

/** A command of `sandyard` or `msb` as a document writes it: the words up to the first flag, and the flags before `--`. */
type Call = { readonly where: string; readonly words: readonly string[]; readonly flags: readonly string[] }

/** Every call of a program in shell blocks and in backticks. */
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
  const program = await makeProgram(['completion']) // which loads them all
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

test('no document names a place that only its writer has', () => {
  const faults = documents().flatMap((path) =>
    readDocument(path)
      .split('\n')
      .flatMap((row, index) =>
        /\.\.\/shared|(^|[\s`(])\/work\/|\/tmp\/tools/.test(row) ? [`${path}:${String(index + 1)}: ${row}`] : [],
      ),
  )
  assertNone(faults, 'not in the repository')
})

test('every decision is listed in the index of decisions', () => {
  const index = readDocument('docs/decisions/README.md')
  const pages = documents().filter((path) => /^docs\/decisions\/\d{4}-/.test(path))
  assertNone(
    pages.filter((path) => !index.includes(`](${basename(path)})`)),
    'not in docs/decisions/README.md',
  )
})

test('the README fits on a few screens, and the glossary needs few words', () => {
  const lines = readDocument('README.md').split('\n').length
  assert.ok(lines <= 130, `README.md has ${String(lines)} lines; at most 130: the rest belongs in docs/guide`)
  const [, glossary = ''] = readDocument('ARCHITECTURE.md').split(/^## Glossary$/m)
  const rows = (glossary.split(/^## /m)[0] ?? '').split('\n').filter((row) => row.startsWith('| ')).length - 2
  assert.ok(rows > 0 && rows <= 40, `the glossary has ${String(rows)} rows; at most 40: use the field's own words`)
})

/** The longest sentence that a document may have; most have at most 25 words. */
const SENTENCE_LIMIT_WORDS = 28

test(`no sentence of a document has more than ${String(SENTENCE_LIMIT_WORDS)} words`, () => {
  const faults = documents()
    .filter((path) => path !== 'docs/reliability.md') // made of the tests' own notes
    .flatMap((path) =>
      sentencesOf(proseOf(readDocument(path)))
        .filter((sentence) => sentence.split(/\s+/).length > SENTENCE_LIMIT_WORDS)
        .map((sentence) => `${path}: ${sentence}`),
    )
  assertNone(faults, 'too long')
})

/** The sentences of paragraphs and list items; tables, headings and comments are left out. A colon ends a sentence, too. */
function sentencesOf(prose: string): readonly string[] {
  return prose
    .replaceAll(/<!--.*?-->/gs, '')
    .split(/\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)/)
    .filter((paragraph) => !/^\s*[|#]/.test(paragraph))
    .flatMap((paragraph) =>
      paragraph
        .replaceAll(/\s+/g, ' ')
        .trim()
        .split(/(?<=[.!?:][)*_"`]*) (?=[A-Z`*_[("0-9])|: /),
    )
}
