import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { test } from 'node:test'

// The laws of the house that no tool knows. Each test lists every breach, as `file:line: what to do instead`.

const root = join(import.meta.dirname, '..')
const maxLines = 300

/** Who may import whom, beside its own folder. `cli` (cli.ts, cli/) may import anything. */
const mayImport: Readonly<Record<string, readonly string[]>> = {
  lib: [],
  domain: [],
  config: ['lib', 'domain', 'settings'],
  settings: ['lib', 'domain'],
  contract: ['domain'],
  store: ['domain', 'lib'],
  control: ['domain', 'contract', 'store', 'lib'],
  loops: ['control', 'store', 'domain', 'lib'],
  relay: ['lib'],
  http: ['contract', 'control', 'relay', 'domain', 'lib'],
  worker: ['contract', 'domain', 'lib'],
}

/** Words that promise work for later or tell history; "placeholder" is allowed, for it is the contract's own word. */
const forbiddenWords =
  /\b(TODO|FIXME|XXX|HACK)\b|, for now\b|\b(stub(bed|s)?(?! resolver)|coming soon|not implemented yet|temporary hack)\b/i

type Source = { readonly path: string; readonly layer: string; readonly text: string; readonly code: string }

const sources = readSources('src')
const everything = [
  ...sources,
  ...readSources('setup'),
  ...readSources('test'),
  ...readSources('bench'),
  ...readSources('migrations'),
]

test('a module imports only from the layers that its own layer may know', () => {
  const breaches = sources.flatMap((source) => {
    const { layer } = source
    const allowed = mayImport[layer]
    if (layer === 'cli') return []
    if (allowed === undefined)
      return [`${source.path}:1: no law says what layer "${layer}" may import; add it to mayImport`]
    return findAll(source, /(?:\bfrom\s*|\bimport\s*\(?\s*)(['"])(\.[^'"]*)\1/g).flatMap(({ at, groups }) => {
      const target = layerOf(join(dirname(source.path), groups[1] ?? ''))
      return target === layer || allowed.includes(target) ? [] : [`${at}: ${layer} must not import ${target}`]
    })
  })
  assertNone(breaches)
})

test('SQL and the database driver are found in src/store only', () => {
  const sql =
    /\b(SELECT\s[^'"`]*?\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|(?:CREATE|ALTER|DROP)\s+(?:TABLE|INDEX|ROLE)\s)/g
  const elsewhere = sources.filter(({ layer }) => layer !== 'store')
  assertNone(breachesOf(elsewhere, sql, 'SQL belongs in src/store'))
  assertNone(breachesOf(elsewhere, /from\s*['"]pg['"]/g, 'only src/store talks to the database'))
})

test('the status of a sandbox is written through control/sandboxes/transition.ts only', () => {
  const writers = sources.filter(
    ({ layer, code }) =>
      layer === 'store' && /UPDATE\s+sandboxes\s+(?:\w+\s+)?SET\s+(\$\{|[^`']*\bstatus\s*=)/i.test(code),
  )
  assert.deepEqual(
    writers.map(({ path }) => path),
    ['src/store/sandboxes/sandbox-states.ts'],
    'the one module of the store that writes a status of a sandbox that exists',
  )
  const importers = sources
    .filter(({ code }) => /from\s*['"][^'"]*\/sandbox-states\.ts['"]/.test(code))
    .map(({ path }) => path)
  assert.deepEqual(
    importers,
    ['src/control/sandboxes/transition.ts'],
    'the only module that may import the writer of status',
  )
})

test('the time of day is read in lib/clock.ts only', () => {
  const elsewhere = sources.filter(({ path }) => path !== 'src/lib/clock.ts')
  assertNone(breachesOf(elsewhere, /\bDate\.now\b|\bnew Date\(\s*\)/g, 'take a Clock as an argument'))
})

test(`no module is longer than ${maxLines} lines`, () => {
  const long = sources
    .map(({ path, text }) => ({ path, lines: text.split('\n').length - 1 }))
    .filter(({ lines }) => lines > maxLines)
  assertNone(long.map(({ path, lines }) => `${path}: ${lines} lines; which is its second idea?`))
})

test('no module keeps state of its own', () => {
  const variables = breachesOf(
    sources,
    /^(?:export )?(?:let|var) /gm,
    'make it an argument or a local of what is built',
  )
  const collection = /^(?:export )?const \w+(?:: [^=]+)? = new (?:Weak)?(?:Map|Set)(?:<[^(]*>)?\(\)/gm
  const collections = breachesOf(sources, collection, 'a collection that starts empty is state; make it a local')
  assertNone([...variables, ...collections])
})

test('no comment promises later work or tells history', () => {
  const breaches = everything
    .filter(({ path }) => path !== relative(root, import.meta.filename))
    .flatMap(({ path, text }) =>
      text.split('\n').flatMap((line, index) => {
        const word = forbiddenWords.exec(line)?.[0]
        return word === undefined ? [] : [`${path}:${index + 1}: "${word}"`]
      }),
    )
  assertNone(breaches)
})

function assertNone(breaches: readonly string[]): void {
  assert.equal(breaches.length, 0, `${breaches.length} breaches:\n${breaches.join('\n')}`)
}

function breachesOf(among: readonly Source[], pattern: RegExp, advice: string): readonly string[] {
  return among.flatMap((source) => findAll(source, pattern).map(({ at }) => `${at}: ${advice}`))
}

type Finding = { readonly at: string; readonly groups: readonly string[] }

function findAll({ path, code }: Source, pattern: RegExp): readonly Finding[] {
  return [...code.matchAll(pattern)].map((match) => ({
    at: `${path}:${code.slice(0, match.index).split('\n').length}`,
    groups: match.slice(1),
  }))
}

function readSources(folder: string): readonly Source[] {
  if (!existsSync(join(root, folder))) return []
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(ts|mjs|sql|pl)$/.test(name))
    .toSorted()
    .map((name) => {
      const path = join(folder, name)
      const text = readFileSync(join(root, path), 'utf8')
      return { path, layer: layerOf(path), text, code: blankComments(text) }
    })
}

/** `src/http/server/server.ts` is of layer `http`, `src/config.ts` of layer `config`. */
function layerOf(path: string): string {
  return /^src\/([^/.]+)/.exec(path)?.[1] ?? path
}

/** The same text with its comments blank, so that lines keep their numbers. Strings are left whole. */
function blankComments(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\/|(^|[^:'"`\\])\/\/[^\n]*/g, (comment) => comment.replace(/[^\n]/g, ' '))
}
